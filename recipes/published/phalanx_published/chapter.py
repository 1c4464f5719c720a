"""Make the chapter `Published figures`: figures of a source, corrections of them, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, axis, epoch_axis, lines, shorten
from phalanx.report.document import (
    MINUS,
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    Value,
    number,
    plain,
    plus_minus,
    text,
)
from phalanx.report.measures import MEASURES, Measure, curve_of, estimate_cell, shared_digits
from phalanx.report.scope import CURVE_MEASURES, Scope, Style
from phalanx_published.figures import (
    CurveSpec,
    FigureSpec,
    MeasureSpec,
    PublishedSpec,
    TableSpec,
    load_published,
)


def published(scope: Scope, file: Path | None) -> Section | None:
    """Show published tables beside ours, slips, claims; None if the study names no file."""
    if file is None:
        return None
    source = load_published(file)
    lines_ = [f"Source: {_sentence(source.source)}"]
    if source.setup:
        lines_.append(_sentence(source.setup))
    lines_.append(
        "Figures marked * were corrected, see Slips. Ours are of this study's machines and sizes: "
        "compare directions and orders, not seconds."
    )
    blocks: list[Block] = [Text(lines=[line]) for line in lines_]
    blocks += [
        _table(f"published-{index}", table, source, scope)
        for index, table in enumerate(source.tables, start=1)
    ]
    blocks += _curves(source, scope)
    blocks += _slips(source)
    blocks += _claims(source)
    if source.missing:
        blocks.append(Text(lines=["What the source does not say:"]))
        blocks.append(Text(lines=list(source.missing), kind="list"))
    return Section(id="published", title="Published figures beside ours", blocks=blocks)


def cells_matching(settings: Mapping[str, str], cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that match a published row; an axis that it omits matches every label."""
    return [
        cell
        for cell in cells
        if all(cell.settings.get(axis_) == label for axis_, label in settings.items())
    ]


def _scale(spec: MeasureSpec) -> float:
    """Return the factor that shows published shares of 1 in per cent, like ours."""
    ours = MEASURES.get(spec.ours or "")
    return ours.scale if ours is not None and ours.unit == "%" and spec.unit == "" else 1.0


def _table(id: str, table: TableSpec, source: PublishedSpec, scope: Scope) -> Table:
    axes = list(dict.fromkeys(name for row in table.rows for name in row.settings))
    keys = list(dict.fromkeys(key for row in table.rows for key in row.values))
    columns = [Column(name, name, is_text=True) for name in axes]
    rows: list[list[Value]] = [
        [text(row.settings.get(name, "any")) for name in axes] for row in table.rows
    ]
    for key in keys:
        spec = source.measures[key]
        figures = [row.values.get(key) for row in table.rows]
        columns.append(Column(f"{key}_published", f"{spec.title}, published", _unit(spec)))
        for line, value in zip(rows, _published_values(figures, spec), strict=True):
            line.append(value)
        ours = MEASURES.get(spec.ours or "")
        if ours is None:
            continue
        columns += [
            Column(f"{key}_ours", "ours", ours.unit),
            Column(f"{key}_ours_half_width", "±", joins=True),
        ]
        cells = [cells_matching(row.settings, scope.cells) for row in table.rows]
        for line, values in zip(rows, _our_values(cells, ours), strict=True):
            line += values
    where = f" ({table.where})" if table.where else ""
    note = f" {_sentence(table.note)}" if table.note else ""
    return Table(id=id, caption=f"{table.title}{where}.{note}", columns=columns, rows=rows)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _unit(spec: MeasureSpec) -> str:
    return "%" if _scale(spec) == 100 else spec.unit


def _published_values(figures: Sequence[FigureSpec | None], spec: MeasureSpec) -> list[Value]:
    """Format figures with as many decimals as the source prints; a slip is marked."""
    scale = _scale(spec)
    known = [figure.value for figure in figures if figure is not None and figure.value is not None]
    digits = max((_decimals(value * scale) for value in known), default=0)
    found = []
    for figure in figures:
        if figure is None:
            found.append(text(None))
            continue
        shown = plain(figure.value, digits, scale=scale)
        star = " *" if figure.is_corrected else ""
        found.append(Value(f"{shown}{star}", figure.value, "doubt" if star else ""))
    return found


def _decimals(value: float) -> int:
    digits = f"{value:.10f}".rstrip("0").partition(".")[2]
    return min(4, len(digits))


def _our_values(cells: Sequence[Sequence[Cell]], measure: Measure) -> list[list[Value]]:
    # A row that names only some of the axes matches several cells, so it has no single figure.
    found = [estimate_cell(own[0], measure.key) if len(own) == 1 else None for own in cells]
    digits = shared_digits(measure, [one.mean if one else None for one in found])
    return [
        [
            number(one.mean if one else None, digits, scale=measure.scale),
            plus_minus(one.half_width if one else None, digits, scale=measure.scale),
        ]
        for one in found
    ]


def _curves(source: PublishedSpec, scope: Scope) -> list[Block]:
    """Draw published curves as dashed lines beside ours, one panel per task and batch."""
    panels = []
    titles: set[str] = set()
    legend: dict[str, Swatch] = {}
    for (task, batch), cells in _by_task_and_batch(scope).items():
        rows: Rows = []
        styles: dict[str, Style] = {}
        for curve in source.curves:
            own = [cell for cell in cells_matching(curve.settings, cells) if cell.finished]
            spec = source.measures[curve.measure]
            if len(own) != 1 or spec.ours not in CURVE_MEASURES:
                continue
            cell, measure = own[0], MEASURES[spec.ours]
            style = scope.styles[cell.id]
            titles.add(measure.title)
            rows += _our_rows(cell, measure)
            rows += _published_rows(cell.method, curve, measure.scale)
            styles[cell.method] = Style(style.colour, (), style.shape)
            styles[f"{cell.method}, published"] = Style(style.colour, (3, 3), style.shape)
            legend[cell.method] = Swatch(label=cell.method, colour=style.colour)
        if rows:
            y = axis("value", f"{' and '.join(sorted(titles))}, %")
            spec_ = lines(rows, styles, epoch_axis(rows), y)
            panels.append(Panel(title=f"{task}, batch {batch}", spec=spec_))
    if not panels:
        return []
    caption = (
        f"{' and '.join(sorted(titles)).capitalize()} after each epoch: ours solid (mean over "
        "seeds), published dashed in the same colour."
    )
    swatches = [*legend.values(), Swatch(label="published", colour="#333333", dash=(3, 3))]
    return [Figure(id="published-curves", caption=caption, panels=panels, legend=swatches)]


def _by_task_and_batch(scope: Scope) -> dict[tuple[str, str], list[Cell]]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in scope.cells:
        groups.setdefault((cell.task, cell.batch), []).append(cell)
    return groups


def _our_rows(cell: Cell, measure: Measure) -> Rows:
    return [
        {"series": cell.method, "epoch": p.epoch, "value": shorten(p.mean * measure.scale)}
        for p in curve_of(cell, measure.key, max_points=300)
    ]


def _published_rows(label: str, curve: CurveSpec, scale: float) -> Rows:
    return [
        {"series": f"{label}, published", "epoch": epoch, "value": shorten(figure.value * scale)}
        for epoch, figure in enumerate(curve.values, start=1)
        if figure.value is not None
    ]


def _slips(source: PublishedSpec) -> list[Block]:
    rows = [
        [
            text(where),
            text(what),
            text(_printed(figure)),
            text(_corrected(figure)),
            text(figure.note),
        ]
        for where, what, figure in _corrected_figures(source)
    ]
    columns = [
        Column("where", "where", is_text=True),
        Column("what", "what", is_text=True),
        Column("printed", "printed"),
        Column("corrected", "corrected"),
        Column("reason", "reason", is_text=True),
    ]
    if not rows:
        return []
    return [Table(id="slips", caption="Slips in the source.", columns=columns, rows=rows)]


def _corrected_figures(source: PublishedSpec) -> list[tuple[str, str, FigureSpec]]:
    in_tables = [
        (table.where or table.title, f"{_cell_text(row.settings)}: {key}", figure)
        for table in source.tables
        for row in table.rows
        for key, figure in row.values.items()
        if figure.is_corrected
    ]
    in_curves = [
        (curve.where, f"{_cell_text(curve.settings)}: {curve.measure} after epoch {epoch}", figure)
        for curve in source.curves
        for epoch, figure in enumerate(curve.values, start=1)
        if figure.is_corrected
    ]
    return in_tables + in_curves


def _cell_text(settings: Mapping[str, str]) -> str:
    return " · ".join(settings.values())


def _printed(figure: FigureSpec) -> str:
    return str(figure.printed).replace("-", MINUS)


def _corrected(figure: FigureSpec) -> str:
    return "unknown" if figure.value is None else f"{figure.value:g}".replace("-", MINUS)


def _claims(source: PublishedSpec) -> list[Block]:
    if not source.claims:
        return []
    columns = [
        Column("claim", "the source says", is_text=True),
        Column("holds", "borne out by its own figures", is_text=True),
        Column("note", "they say", is_text=True),
        Column("where", "where", is_text=True),
    ]
    rows = [
        [
            text(claim.text),
            text("yes" if claim.holds else "no", "" if claim.holds else "doubt"),
            text(claim.note),
            text(claim.where),
        ]
        for claim in source.claims
    ]
    caption = "What the source concludes, against its own figures."
    return [Table(id="claims", caption=caption, columns=columns, rows=rows)]
