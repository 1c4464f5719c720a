"""Render a report as one self-contained HTML file: no network, no second file.

The drawing library (Vega, Vega-Lite, Vega-Embed) is embedded once for all charts; a content
security policy forbids the page to load anything. Without JavaScript the tables hold the figures.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phalanx.report.document import Figure, Report

_TEMPLATE = "page.html.jinja"
_VEGA_LITE = "6.4"
_SVG_WIDTH = 560
_PAGE_ONLY = ("autosize", "usermeta")


def to_page(document: Report) -> str:
    """Render a whole report as HTML."""
    specs = [panel.spec for figure in document.figures() for panel in figure.panels]
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    template = environment.from_string(_read(_TEMPLATE))
    return template.render(
        document=document,
        style=Markup(_read("page.css")),
        script=Markup(_read("interact.js") + _read("page.js")),
        library=Markup(chart_library()) if specs else "",
        charts=_embed(specs),
        config=_embed(chart_config()),
    )


def to_svg(figure: Figure) -> str:
    """Draw a figure as one SVG image, its panels below one another."""
    return str(vl_convert.vegalite_to_svg(_alone(figure), vl_version=_VEGA_LITE))


def to_png(figure: Figure) -> bytes:
    """Draw a figure as one PNG image, at twice the size for sharp screens."""
    return vl_convert.vegalite_to_png(_alone(figure), vl_version=_VEGA_LITE, scale=2)


def _alone(figure: Figure) -> dict[str, Any]:
    """Build one specification of all panels of a figure."""
    panels = [
        {**_drawn_alone(panel.spec), "title": panel.title or figure.caption}
        for panel in figure.panels
    ]
    return {
        "vconcat": panels,
        # Each panel has its own colours; shared scales would give all the first one's.
        "resolve": {"scale": {"color": "independent", "xOffset": "independent"}},
        "config": {**chart_config(), "background": "white"},
    }


@cache
def chart_config() -> dict[str, Any]:
    """Read the configuration that all charts share.

    The title of a vertical axis stands above it, because rotated text is hard to read.
    """
    config: dict[str, Any] = json.loads(_read("charts.json"))
    return config


def _drawn_alone(value: Any) -> Any:
    """Give a chart a width and its own legend, which a page supplies around it."""
    if isinstance(value, dict):
        found = {key: _drawn_alone(one) for key, one in value.items() if key not in _PAGE_ONLY}
        if value.get("width") == "container":
            found["width"] = _SVG_WIDTH
        if "legend" in value and value["legend"] is None:
            found["legend"] = {"title": None, "orient": "bottom"}
        return found
    return [_drawn_alone(one) for one in value] if isinstance(value, list) else value


def interaction_script() -> bytes:
    """Return the module that draws charts and gives them their controls, for other pages."""
    return _read("interact.js").encode()


def _embed(value: object) -> Markup:
    """Encode JSON that cannot close the enclosing element, whatever a label contains."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def chart_library() -> str:
    """Bundle the drawing library, once per process: it takes a second or two."""
    # Without a snippet the bundle defines `vegaEmbed`; the package's own types ask for one.
    bundle = vl_convert.javascript_bundle(None, vl_version=_VEGA_LITE)  # type: ignore[arg-type]
    return bundle.replace("</script", "<\\/script")


def _read(name: str) -> str:
    return resources.files("phalanx.report").joinpath("template", name).read_text(encoding="utf-8")
