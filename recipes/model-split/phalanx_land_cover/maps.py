"""Draw true and predicted land cover of the test scene as maps: a part of the report."""

from __future__ import annotations

from phalanx.records.predictions import PartPredictions
from phalanx.report.charts import Rows, chart
from phalanx.report.document import Block, Figure, Panel, Section, Swatch
from phalanx.report.parts.metrics import best_predictions
from phalanx.report.scope import Scope

_COLOURS = (
    *("#4477aa", "#c8a165", "#66c35e", "#b8b03a", "#00a08a", "#2e7d32"),
    *("#0b4f2a", "#e6c300", "#444444", "#b0b0b0", "#cc6677", "#882255"),
    *("#8dd3c7", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69"),
    *("#fccde5", "#bc80bd", "#ccebc5", "#ffed6f", "#999933", "#332288"),
)


def show_maps(scope: Scope) -> Section | None:
    """Draw the best cell of each task; None if no test samples lie on a grid."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        found = best_predictions(cells)
        if found is None or found[1].grid is None:
            continue
        best, verdicts = found
        legend = {
            verdicts.name_of(label): _COLOURS[label % len(_COLOURS)]
            for label in range(verdicts.num_classes)
        }
        both = (("Map: true", verdicts.actual), ("Map: predicted", verdicts.predicted))
        blocks.append(
            Figure(
                id=f"maps-{index}",
                caption=f"{task}: the test scene in the typical run of {best.phrase}.",
                panels=[_panel(title, labels, verdicts, legend) for title, labels in both],
                legend=[Swatch(label=n, colour=c, is_field=True) for n, c in legend.items()],
            )
        )
    return Section(id="maps", title="Maps", blocks=blocks) if blocks else None


def _panel(
    title: str, labels: list[int], verdicts: PartPredictions, legend: dict[str, str]
) -> Panel:
    assert verdicts.grid is not None
    width, known = verdicts.grid[1], verdicts.num_classes
    rows: Rows = [
        {
            "x": place % width,
            "y": place // width,
            "class": verdicts.name_of(label) if label < known else "none",
        }
        for place, label in enumerate(labels)
    ]
    plain = {"type": "ordinal", "title": None, "axis": None}
    scale = {"domain": [*legend, "none"], "range": [*legend.values(), "#ffffff"]}
    spec = chart(
        rows,
        240,
        mark={"type": "rect", "tooltip": {"content": "data"}},
        encoding={
            "x": {"field": "x", **plain},
            "y": {"field": "y", **plain},
            "color": {"field": "class", "type": "nominal", "scale": scale, "legend": None},
        },
    )
    return Panel(title=title, spec=spec)
