"""Implement `phalanx blame`: which workers the others waited for, why, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.cli.options import FormatOption, JsonOption, RunArgument, RunsOption, wanted

if TYPE_CHECKING:
    from phalanx.report.blame import Blame
    from phalanx.report.document import Block, Table

EXAMPLES = """
[bold]Examples[/bold]

phalanx blame last

phalanx blame demo-allreduce --json
"""


def blame(
    run: RunArgument,
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Attribute waiting time to the workers that caused it, by phase of the step."""
    from phalanx.cli import output
    from phalanx.cli.settings import runs_root
    from phalanx.records.rundir import find_run
    from phalanx.report.blame import blame_run
    from phalanx.report.document import line

    found = blame_run(find_run(runs_root(runs), run))

    def blocks() -> list[Block]:
        return [line(headline(found)), *([blame_table(found)] if found.blamed_s > 0 else [])]

    output.show(blocks, facts=lambda: found, form=wanted(form, as_json))


def headline(found: Blame) -> str:
    """Summarise blame in a sentence."""
    from phalanx.report.format import count_noun, format_duration, format_percent

    if found.waiting_s <= 0:
        return "no worker waited for another"
    waiting = format_duration(found.waiting_s)
    if found.blamed_s <= 0:
        return f"all workers together waited {waiting}; no late worker explains it"
    worst = found.ranks[0]
    phase = max(worst.phases, key=lambda name: worst.phases[name])
    return (
        f"all workers together waited {waiting} in {count_noun(found.rounds, 'round')}; "
        f"worker-{worst.rank} accounts for {format_percent(worst.cost_s / found.waiting_s)} of it, "
        f"mostly in {phase}"
    )


def blame_table(found: Blame) -> Table:
    """Make one row per worker: what it cost the others, by phase."""
    from phalanx.report.blame import PHASES, RankBlame
    from phalanx.report.document import CellFormat, Column, Value, tabulate, text
    from phalanx.report.format import NOTHING, format_count, format_duration

    def seconds(value: float | None) -> Value:
        return Value(format_duration(value), value)

    def phase_s(phase: str) -> CellFormat[RankBlame]:
        def cell(one: RankBlame) -> Value:
            value = seconds(one.phases.get(phase))
            return value if value.text != "0.00 s" else Value(NOTHING, value.raw)

        return cell

    columns: list[tuple[Column, CellFormat[RankBlame]]] = [
        (Column("worker", "worker", is_text=True), lambda one: text(f"worker-{one.rank}")),
        (Column("cost_s", "cost the\nothers"), lambda one: seconds(one.cost_s)),
        *((Column(f"{phase}_s", f"in {phase}"), phase_s(phase)) for phase in PHASES),
        (
            Column("rounds_last", "last in\nrounds"),
            lambda one: Value(format_count(one.rounds_last), one.rounds_last),
        ),
        (Column("waited_s", "waited\nitself"), lambda one: seconds(one.waited_s)),
    ]
    return tabulate("blame", found.ranks, columns)
