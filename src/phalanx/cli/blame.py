"""Implement `phalanx blame`: which workers the others waited for, why, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.cli import output
from phalanx.cli.options import FormatOption, JsonOption, RunArgument, RunsOption, examples, wanted
from phalanx.cli.settings import runs_root
from phalanx.report.document import Block, CellFormat, Column, Table, Value, line, tabulate, text
from phalanx.report.format import (
    NOTHING,
    count_noun,
    format_count,
    format_duration,
    format_percent,
    number_field,
    shown,
)

if TYPE_CHECKING:
    from phalanx.report.blame import Blame, RankBlame

EXAMPLES = examples("phalanx blame last", "phalanx blame demo-allreduce --json")


def blame(
    run: RunArgument,
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Attribute waiting time to the workers that caused it, by phase of the step."""
    from phalanx.records.rundir import find_run
    from phalanx.report.blame import blame_run

    found = blame_run(find_run(runs_root(runs), run))

    def blocks() -> list[Block]:
        return [line(headline(found)), *([blame_table(found)] if found.blamed_s > 0 else [])]

    output.show(blocks, facts=lambda: found, form=wanted(form, as_json))


def headline(found: Blame) -> str:
    """Summarise blame in a sentence."""
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


def _phase_column(phase: str, found: Blame) -> Column:
    # On a narrow screen a phase that cost nothing goes first, then the least costly.
    costs: dict[str, float] = {}
    for one in found.ranks:
        for name, cost_s in one.phases.items():
            costs[name] = costs.get(name, 0.0) + cost_s
    ordered = sorted(costs, key=costs.__getitem__)
    return Column(
        f"{phase}_s", f"in {phase}", keep=4 + ordered.index(phase) if phase in costs else 1
    )


def blame_table(found: Blame) -> Table:
    """Make one row per worker: what it cost the others, by phase."""
    from phalanx.report.blame import PHASES

    def phase_s(phase: str) -> CellFormat[RankBlame]:
        def cell(one: RankBlame) -> Value:
            value = shown(one.phases.get(phase), format_duration)
            return value if value.text != "0.00 s" else Value(NOTHING, value.raw)

        return cell

    columns: list[tuple[Column, CellFormat[RankBlame]]] = [
        (Column("worker", "worker", is_text=True), lambda one: text(f"worker-{one.rank}")),
        number_field("cost_s", "cost the\nothers", format_duration),
        *((_phase_column(phase, found), phase_s(phase)) for phase in PHASES),
        number_field("rounds_last", "last in\nrounds", format_count, keep=2),
        number_field("waited_s", "waited\nitself", format_duration, keep=3),
    ]
    return tabulate("blame", found.ranks, columns)
