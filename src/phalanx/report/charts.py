"""Build Vega-Lite specifications of lines, bars, points and histograms for reports; pure.

Specifications are plain mappings with their data inside. Legends are not drawn by Vega-Lite but
stand in the page, where they wrap on a narrow screen and cannot cover anything. Width is that of
the container, so a chart fits every screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.report.document import Swatch
from phalanx.report.scope import Style

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

MAX_POINTS = 300
"""Per line."""
GREY = "#767676"
_BAR_PIXELS = 34
_MAX_MARKED = 30
_TOOLTIP: Spec = {"tooltip": {"content": "data"}}
_TWO_LINES = (
    "split(indexof(datum.label, ' (') < 0 ? replace(datum.label, ' · ', '\\n')"
    " : replace(datum.label, ' (', '\\n('), '\\n')"
)


def shorten(value: float | None) -> float | None:
    """Round to six significant digits: finer than a pixel, and the same bytes everywhere."""
    return None if value is None else float(f"{value:.6g}")


def axis(field: str, title: str, **extra: Any) -> Spec:
    """Build a quantitative channel."""
    scale = extra.pop("scale", {"zero": False, "nice": True})
    formatted = {"format": extra.pop("format")} if "format" in extra else {}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {**formatted, **extra.pop("axis", {})},
        **extra,
    }


def epoch_axis(rows: Rows) -> Spec:
    """Build an axis of epochs: whole numbers from 1, at most seven of them labelled."""
    last = max((int(row["epoch"]) for row in rows), default=1)
    steps = (base * 10**power for power in range(7) for base in (1, 2, 5))
    step = next(step for step in steps if last / step <= 6)
    values = sorted({1, *range(step, last + 1, step)})
    ticks = {"values": values, "format": "d"}
    return axis("epoch", "epoch", scale={"zero": False, "nice": False}, axis=ticks)


def by_series(styles: Mapping[str, Style], channel: str) -> Spec:
    """Build a channel of colour, dash or shape by series."""
    ranges = {
        "color": [style.colour for style in styles.values()],
        "strokeDash": [list(style.dash) or [1, 0] for style in styles.values()],
        "shape": [style.shape for style in styles.values()],
    }
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(styles), "range": ranges[channel]},
        "legend": None,
    }


def _layer(mark: Spec, data: Rows | None = None, **encoding: Spec) -> Spec:
    found: Spec = {"mark": mark, "encoding": encoding}
    return found if data is None else {"data": {"values": data}, **found}


def lines(
    rows: Rows,
    styles: Mapping[str, Style],
    x: Spec,
    y: Spec,
    *,
    band: bool = False,
    points: bool = True,
    choices: Sequence[Spec] = (),
) -> Spec:
    """Draw one line per series; with a band from `low` to `high`, and points if they fit.

    Pages offer the choices, channels of the same rows, as other horizontal axes.
    """
    place: Spec = {"x": x, "y": y, "color": by_series(styles, "color")}
    layers: list[Spec] = []
    if band:
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append(_layer({"type": "area", "opacity": 0.16, "line": False}, **place | ends))
    line = {"type": "line", "strokeJoin": "round", **_TOOLTIP}
    layers.append(_layer(line, **place, strokeDash=by_series(styles, "strokeDash")))
    counts = [sum(row["series"] == series for row in rows) for series in styles]
    if points and max(counts, default=0) <= _MAX_MARKED:
        layers.append(_layer(_points(26, 1), **place, shape=by_series(styles, "shape")))
    offered = {"x": list(choices)} if choices else {}
    controls = {"controls": True, "smooth": True, **offered}
    return chart(rows, 200, layer=layers, usermeta=controls)


def scatter(
    runs: Rows, means: Rows, front: Rows, styles: Mapping[str, Style], x: Spec, y: Spec
) -> Spec:
    """Draw runs as faint points, means as large ones, and the front as a line of steps."""
    steps = {"type": "line", "interpolate": "step-after", "color": GREY, "strokeWidth": 1.5}
    colour, shape = by_series(styles, "color"), by_series(styles, "shape")
    outlined = {"stroke": "white", "strokeWidth": 1, **_TOOLTIP}
    return chart(
        None,
        300,
        usermeta={"controls": True},
        layer=[
            _layer({**steps, "strokeDash": [5, 3]}, front, x=x, y=y),
            _layer(_points(30, 0.4), runs, x=x, y=y, color=colour, shape=shape),
            _layer(_points(130, 1) | outlined, means, x=x, y=y, color=colour, shape=shape),
        ],
    )


def _points(size: int, opacity: float) -> Spec:
    return {"type": "point", "filled": True, "size": size, "opacity": opacity}


def stacked_bars(rows: Rows, order: Sequence[str], fields: Sequence[Swatch], title: str) -> Spec:
    """Draw horizontal bars of `amount`, one per `bar`, stacked from `part`s."""
    bars = list(dict.fromkeys(row["bar"] for row in rows))
    scale = {"domain": list(order), "range": [field.colour for field in fields]}
    return chart(
        rows,
        _BAR_PIXELS * len(bars),
        mark={"type": "bar", **_TOOLTIP, "height": {"band": 0.66}},
        encoding={
            "y": bar_axis(bars),
            "x": axis("amount", title, scale={"zero": True, "nice": True}, stack="zero"),
            "color": {"field": "part", "type": "nominal", "scale": scale, "legend": None},
            "order": {"field": "rank", "type": "quantitative"},
        },
    )


def bars_with_range(rows: Rows, styles: Mapping[str, Style], title: str) -> Spec:
    """Draw bars of `amount` with whiskers from `low` to `high`, ideals and a rule at 1.

    Bars without an interval are pale: nothing says how far they can be trusted.
    """
    bars = list(dict.fromkeys(row["series"] for row in rows))
    y = {**bar_axis(bars), "field": "series"}
    # Whiskers of few runs can be very long: the axis ends where the bars and ideals do.
    top = max([row["amount"] for row in rows] + [row["ideal"] for row in rows] + [1.0]) * 1.25
    x = axis("amount", title, scale={"zero": True, "domainMax": shorten(top), "clamp": True})
    bar = {"type": "bar", **_TOOLTIP, "height": {"band": 0.55}}
    tick = {"type": "tick", "thickness": 2, "color": "#333333", "size": 24}
    rule = {"type": "rule", "strokeDash": [3, 3], "color": GREY}
    pale = {"condition": {"test": "isValid(datum.low)", "value": 1}, "value": 0.2}
    layers = [
        _layer(bar, y=y, x=x, color=by_series(styles, "color"), fillOpacity=pale),
        _layer(tick, y=y, x={**x, "field": "ideal"}),
        _layer(rule, [{"one": 1}], x={**x, "field": "one"}),
    ]
    whiskers = [row for row in rows if row.get("low") is not None]
    if whiskers:
        thin = {"type": "rule", "strokeWidth": 1.5, "color": "#333333"}
        ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
        layers.append(_layer(thin, whiskers, y=y, **ends))
    return chart(rows, _BAR_PIXELS * len(bars), layer=layers)


def histogram(rows: Rows, styles: Mapping[str, Style], x_title: str, y_title: str) -> Spec:
    """Draw bars of `share` by `bin`, side by side per series; bins keep the order of the rows."""
    bins = list(dict.fromkeys(row["bin"] for row in sorted(rows, key=lambda row: row["rank"])))
    upright = {"title": x_title, "axis": {"labelAngle": 0}}
    return chart(
        rows,
        180,
        mark={"type": "bar", **_TOOLTIP},
        encoding={
            "x": {"field": "bin", "type": "ordinal", "sort": bins, **upright},
            "xOffset": {"field": "series", "type": "nominal", "sort": list(styles)},
            "y": axis("share", y_title, scale={"zero": True, "nice": True}),
            "color": by_series(styles, "color"),
        },
    )


def heat_map(rows: Rows, names: Sequence[str], *, x_title: str, y_title: str) -> Spec:
    """Draw squares of `value` from 0 to 1 by `x` and `y`, both among the names."""
    axes = {"type": "nominal", "sort": list(names)}
    slanted = {"labelAngle": -45, "labelOverlap": False}
    scale = {"domain": [0, 1], "range": ["#f7fbff", "#08306b"]}
    return chart(
        rows,
        max(180, 16 * len(names)),
        mark={"type": "rect", **_TOOLTIP},
        encoding={
            "x": {**axes, "field": "x", "title": x_title, "axis": slanted},
            "y": {**axes, "field": "y", "title": y_title},
            "color": {"field": "value", "type": "quantitative", "scale": scale, "legend": None},
        },
    )


def bar_axis(bars: Sequence[str]) -> Spec:
    """Build the axis of bar labels, in two lines: the strategy, and the rest."""
    return {
        "field": "bar",
        "type": "nominal",
        "sort": list(bars),
        "title": None,
        "axis": {
            "labelExpr": _TWO_LINES,
            "labelLimit": 150,
            "labelLineHeight": 12,
            # The first of two lines is centred; half a line up, both are.
            "labelOffset": -6,
            "domain": False,
            "ticks": False,
            "labelOverlap": False,
        },
    }


def chart(rows: Rows | None, height: int, **parts: Any) -> Spec:
    """Make a chart as wide as its container; None: the layers bring their own data."""
    data = {} if rows is None else {"data": {"values": rows}}
    size = {"width": "container", "height": height}
    return {**size, "autosize": {"type": "fit-x", "contains": "padding"}, **data, **parts}
