"""`phalanx blame`: who was waited for in a run, why, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.runs import RunsOption

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.report.blame import Blame

EXAMPLES = """
[bold]Examples[/bold]

phalanx blame last

phalanx blame demo-allreduce --json
"""


def blame(
    run: Annotated[str, typer.Argument(help="Name, a unique beginning of it, a path, or 'last'.")],
    runs: RunsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
) -> None:
    """Say which workers the others waited for, in which phase, and for how long."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import runs_root
    from phalanx.cli.train import print_json
    from phalanx.records.rundir import find_run
    from phalanx.report.blame import blame_run

    found = blame_run(find_run(runs_root(runs), run))
    if as_json:
        print_json(found)
        return
    console = open_console()
    console.print(headline(found))
    if found.blamed_s > 0:
        console.print(render_blame(found))


def headline(found: Blame) -> str:
    """What it comes to, in a sentence."""
    from phalanx.report.format import count_noun, format_duration, format_percent

    if found.waiting_s <= 0:
        return "nobody waited for another worker"
    waiting = format_duration(found.waiting_s)
    if found.blamed_s <= 0:
        return f"all workers together waited {waiting}; nobody's lateness explains it"
    worst = found.ranks[0]
    phase = max(worst.phases, key=lambda name: worst.phases[name])
    return (
        f"all workers together waited {waiting} in {count_noun(found.rounds, 'round')}; "
        f"worker-{worst.rank} accounts for {format_percent(worst.cost_s / found.waiting_s)} of it, "
        f"mostly in {phase}"
    )


def render_blame(found: Blame) -> Table:
    """One line per worker: what it cost the others, by phase."""
    from rich.table import Table

    from phalanx.report.format import NOTHING, format_count, format_duration
    from phalanx.report.rounds import PHASES

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("\nworker", no_wrap=True)
    titles = ("cost the\nothers", *(f"\nin {phase}" for phase in PHASES))
    for title in (*titles, "last in\nrounds", "waited\nitself"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in found.ranks:
        phases = [format_duration(one.phases.get(phase)) for phase in PHASES]
        table.add_row(
            f"worker-{one.rank}",
            format_duration(one.cost_s),
            *(NOTHING if text == "0.00 s" else text for text in phases),
            format_count(one.rounds_last),
            format_duration(one.waited_s),
        )
    return table
