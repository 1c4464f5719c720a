"""The report as one HTML file that needs nothing else: no network, no second file.

The drawing library (Vega, Vega-Lite, Vega-Embed) is put in once for all charts; a content security
policy forbids the page to load anything. Without JavaScript the tables hold the figures.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phalanx.report.charts import CONFIG
from phalanx.report.document import Document

_TEMPLATE = "page.html.jinja"
_VEGA_LITE = "6.4"


def to_page(document: Document) -> str:
    """The whole report as HTML."""
    specs = [panel.spec for figure in document.figures() for panel in figure.panels]
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    template = environment.from_string(_read(_TEMPLATE))
    return template.render(
        document=document,
        style=Markup(_read("page.css")),
        script=Markup(_read("page.js")),
        library=Markup(_library()) if specs else "",
        charts=_embed(specs),
        config=_embed(CONFIG),
    )


def _embed(value: object) -> Markup:
    """JSON that cannot end the element that it stands in, whatever a label contains."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _library() -> str:
    """The drawing library; bundling takes a second or two, so it is done once per process."""
    # Without a snippet the bundle defines `vegaEmbed`; the package's own types ask for one.
    bundle = vl_convert.javascript_bundle(None, vl_version=_VEGA_LITE)  # type: ignore[arg-type]
    return bundle.replace("</script", "<\\/script")


def _read(name: str) -> str:
    return resources.files("phalanx.report").joinpath("template", name).read_text(encoding="utf-8")
