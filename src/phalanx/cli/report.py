"""Implement `phalanx report`: one page, Markdown and CSV tables about studies and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from phalanx.cli.options import QuietOption, RunsOption, argument, examples, option, run_names
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError
from phalanx.report.format import count_noun

# Recommendations that fit on a screen; the page has all.
_MOST_TASKS = 5

EXAMPLES = examples(
    "phalanx report runs/study-digits",
    "phalanx report runs -o all.html --markdown all.md --csv tables",
    "phalanx report runs --baseline single --tolerance 0.01 --prefer energy",
    "phalanx report digits-20260101 digits-20260102 --target val_accuracy=0.97",
    "phalanx report runs/study-land --part recipes.land_cover.report:PART",
)


def report(
    sources: Annotated[
        list[str],
        argument(
            "STUDY_OR_RUNS...",
            "Names or directories of studies and runs, or directories of runs.",
            autocompletion=run_names,
        ),
    ],
    output: Annotated[Path, option("FILE", "HTML page to write.", "--output", "-o")] = Path(
        "report.html"
    ),
    markdown: Annotated[Path | None, option("FILE", "Also write the report as Markdown.")] = None,
    csv: Annotated[Path | None, option("DIR", "Also write every table as CSV.")] = None,
    tolerance: Annotated[
        float | None,
        option(
            "SHARE",
            "Accuracy tolerance for equivalence, as a fraction (0.005 = 0.5 points) "
            "\\[default: the study's].",
            min=0.0,
        ),
    ] = None,
    prefer: Annotated[
        Literal["time", "cost", "energy"] | None,
        option(None, "Objective of the recommendation \\[default: the study's, else time]."),
    ] = None,
    target: Annotated[
        str | None,
        option("MEASURE=VALUE", "Target of time-to-accuracy, such as test_accuracy=0.97."),
    ] = None,
    baseline: Annotated[
        str | None, option("NAME", "Baseline of comparisons, such as single.")
    ] = None,
    part: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Add a part to the report: package.module:name, or an installed one; repeatable.",
        ),
    ] = None,
    runs: RunsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare studies and runs in one HTML page: statistics, charts and a recommendation."""
    from phalanx.api import make_report

    document = make_report(
        _paths(sources, runs_root(runs)),
        page=output,
        markdown=markdown,
        csv=csv,
        tolerance=tolerance,
        prefer=prefer,
        target=_target(target),
        baseline=baseline,
        parts=part or (),
    )
    if quiet:
        return
    console = open_console()
    for sentence in document.advice[:_MOST_TASKS]:
        console.print(sentence, markup=False)
        console.print()
    more = len(document.advice) - _MOST_TASKS
    if more > 0:
        console.print(f"and {count_noun(more, 'task')} more, on the page", markup=False)
        console.print()
    written = [output, *([markdown] if markdown else []), *([csv] if csv else [])]
    console.print(f"written: {', '.join(str(path) for path in written)}", markup=False)


def _paths(sources: Sequence[str], root: Path) -> list[Path]:
    """Resolve sources: directories as they are, anything else as the name of a study or run."""
    return [Path(source) if Path(source).is_dir() else _named(source, root) for source in sources]


def _named(source: str, root: Path) -> Path:
    from phalanx.records.rundir import find_run
    from phalanx.records.study import find_study

    try:
        return find_run(root, source).path
    except SpecError as error:
        try:
            return find_study(root, source).path
        except SpecError:
            raise error from None


def _target(text: str | None) -> tuple[str, float] | None:
    if text is None:
        return None
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise SpecError(
            f"--target {text}: a target is MEASURE=VALUE, such as test_accuracy=0.97"
        ) from None
