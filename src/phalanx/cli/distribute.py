"""Implement `phalanx data distribute`: show which worker would own which samples.

Partitions exactly as a run would and trains nothing. The partition can be written as the JSON of
a run directory, and the chart as SVG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from phalanx.cli import output
from phalanx.cli.options import (
    DataOption,
    FormatOption,
    JsonOption,
    SetOption,
    argument,
    examples,
    option,
    wanted,
)
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root
from phalanx.errors import SpecError
from phalanx.report.document import Block, CellFormat, Column, line, tabulate, text
from phalanx.report.format import format_count, number_field, shown

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.records.distribution import Distribution, WorkerShare

EXAMPLES = examples(
    "phalanx data distribute job.yaml --show",
    "phalanx data distribute job.yaml --set data.distribution=by_class --out partition.json",
)

_MOST_COLUMNS = 64
_SHADES = " ░▒▓█"
_CELL, _LABEL = 14, 90


def distribute(
    job: Annotated[Path, argument("JOB", "Job file with `data.distribution`.")],
    settings: SetOption = None,
    show: Annotated[
        bool, option(None, "Draw the share of each class by worker.", "--show")
    ] = False,
    out: Annotated[Path | None, option("FILE", "Write the partition as JSON.", "--out")] = None,
    picture: Annotated[
        Path | None, option("FILE", "Write the drawing as SVG.", "--picture")
    ] = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show how a job would partition its samples over the workers; trains nothing."""
    from phalanx.data.dataset import open_dataset
    from phalanx.data.distribution import describe_distribution
    from phalanx.data.distribution import distribute as distribute_samples
    from phalanx.records.rundir import encode_pretty
    from phalanx.spec.loader import load_job
    from phalanx.store.atomic import write_atomically

    spec = load_job(job, settings or ())
    dataset = open_dataset(spec.data, data_root=data_root(data), cache_root=cache_root())
    found = describe_distribution(distribute_samples(dataset, spec), spec)
    if found is None:
        raise SpecError(
            "this job does not partition its samples: every batch is cut over the workers; set "
            "'data.distribution', such as iid or {name: dirichlet, alpha: 0.1}"
        )
    form = wanted(form, as_json)
    output.show(lambda: distribution_blocks(found), facts=lambda: found, form=form)
    if show and form == "text":
        _print_picture(open_console(), found)
    if out is not None:
        write_atomically(out, encode_pretty(found))
    if picture is not None:
        write_atomically(picture, svg_of(found).encode())


def distribution_blocks(found: Distribution) -> list[Block]:
    """Describe how many samples and classes each worker holds."""
    named = ", ".join(f"{key} {value}" for key, value in found.settings.items())
    skew = "" if found.skew is None else f"label skew {found.skew:.3f}, "
    columns: list[tuple[Column, CellFormat[WorkerShare]]] = [
        number_field("worker", "worker"),
        number_field("num_samples", "samples", format_count),
        (Column("per_step", "per step"), lambda one: shown(one.samples_per_step, format_count)),
        (Column("per_epoch", "per epoch"), lambda one: shown(one.samples_per_epoch, format_count)),
        (Column("classes", "classes"), lambda one: shown(_num_classes(one), str)),
        number_field("skew", "skew", "{:.3f}".format),
    ]
    if found.workers[0].modalities is not None:
        sensors = Column("sensors", "sensors", is_text=True)
        columns.append((sensors, lambda one: text(", ".join(one.modalities or ()))))
    return [
        line(
            f"{found.data}: {found.num_samples:,} training samples partitioned {found.scheme}"
            f"{f' ({named})' if named else ''} from seed {found.seed} over {len(found.workers)} "
            f"workers; an epoch has {found.num_steps:,} steps and {found.samples_per_epoch:,} "
            "samples"
        ),
        line(f"{skew}largest part over smallest {found.size_ratio:.2f}\n"),
        tabulate("workers", found.workers, columns),
    ]


def _num_classes(one: WorkerShare) -> int | None:
    counts = one.class_counts
    return None if counts is None else sum(count > 0 for count in counts)


def _print_picture(console: Console, found: Distribution) -> None:
    """Draw one row per worker, one column per class or range of classes; darker is more."""
    if found.workers[0].class_counts is None:
        longest = max(one.num_samples for one in found.workers)
        for one in found.workers:
            bar = "█" * max(1, round(_MOST_COLUMNS * one.num_samples / longest))
            console.print(f"{one.worker:>6}  {bar}")
        return
    shares, width = _columns(found)
    console.print(
        "\n        one column is one class"
        if width == 1
        else f"\n        one column is {width} classes"
    )
    for one, row in zip(found.workers, shares, strict=True):
        # Ceiling, so that a worker with one sample of a class is not drawn as one with none.
        glyphs = "".join(_SHADES[-int(-share * (len(_SHADES) - 1) // 1)] for share in row)
        console.print(f"{one.worker:>6}  {glyphs}", markup=False)
    console.print("        blank: none of the class   █: more than three quarters of it")


def _columns(found: Distribution) -> tuple[list[list[float]], int]:
    """Return each worker's share of each class or range of classes, and the range's width."""
    num_classes = len(found.workers[0].class_counts or ())
    width = max(1, -(-num_classes // _MOST_COLUMNS))
    starts = range(0, num_classes, width)
    sums = [
        [sum((one.class_counts or [])[start : start + width]) for start in starts]
        for one in found.workers
    ]
    totals = [max(1, sum(column)) for column in zip(*sums, strict=True)]
    return [[own / all_ for own, all_ in zip(row, totals, strict=True)] for row in sums], width


def svg_of(found: Distribution) -> str:
    """Draw the partition as SVG: darker is a larger share of the class; bars are sizes."""
    from xml.sax.saxutils import escape

    shares, _ = _columns(found) if found.workers[0].class_counts else ([[]] * len(found.workers), 1)
    longest = max(one.num_samples for one in found.workers)
    grid_width = _CELL * len(shares[0])
    width, height = _LABEL + grid_width + 220, 40 + (_CELL + 4) * len(found.workers)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><title>{escape(found.scheme)}</title>'
        f'<text x="0" y="14">{escape(found.data)}, {escape(found.scheme)}: share of each class, '
        "and samples</text>"
    ]
    for number, (one, row) in enumerate(zip(found.workers, shares, strict=True)):
        y = 30 + (_CELL + 4) * number
        parts.append(f'<text x="0" y="{y + 11}">worker {one.worker}</text>')
        parts += [
            f'<rect x="{_LABEL + _CELL * column}" y="{y}" width="{_CELL - 1}" height="{_CELL}" '
            f'fill="#0072b2" fill-opacity="{share:.3f}" stroke="#cccccc" stroke-width="0.5"/>'
            for column, share in enumerate(row)
        ]
        x = _LABEL + grid_width + 10
        bar = 130 * one.num_samples / longest
        parts.append(
            f'<rect x="{x}" y="{y}" width="{bar:.1f}" height="{_CELL}" fill="#767676"/>'
            f'<text x="{x + bar + 4:.1f}" y="{y + 11}">{one.num_samples:,}</text>'
        )
    return "".join([*parts, "</svg>\n"])
