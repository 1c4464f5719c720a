"""Describe simulated strategies as a table and as charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from phalanx.report.charts import Rows, histogram, shorten, stacked_bars
from phalanx.report.document import (
    Block,
    CellFormat,
    Column,
    Figure,
    Panel,
    Report,
    Section,
    Swatch,
    Table,
    Value,
    line,
    tabulate,
)
from phalanx.report.format import (
    NOTHING,
    count_noun,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    number_field,
    text_field,
)
from phalanx.report.parts.staleness import bins_of, histogram_rows
from phalanx.report.scope import series_styles
from phalanx.simulate.scenario import Scenario, SimulatedStrategy

_PARTS = {"computing": "#56B4E9", "exchange and waiting": "#999999"}


def simulation_blocks(found: Sequence[SimulatedStrategy], scenario: Scenario) -> list[Block]:
    """Describe a scenario and the result of each strategy in it."""
    return [line(describe_scenario(scenario), "lead"), simulation_table(found)]


def describe_scenario(scenario: Scenario) -> str:
    """Describe a scenario in one line."""
    parts = [
        count_noun(scenario.workers, "worker"),
        f"batch {scenario.batch} each",
        count_noun(scenario.rounds, "round"),
    ]
    slow = scenario.stragglers
    if slow is not None:
        spells = f" in spells of {slow.slow_s:g} s" if slow.slow_s is not None else ""
        parts.append(
            f"{format_percent(slow.share)} of machines {slow.factor:g} times slower{spells}"
        )
    parts += [f"worker-{one.rank} lost at {one.at_s:g} s" for one in scenario.crashes]
    return "simulated: " + ", ".join(parts)


def simulation_table(found: Sequence[SimulatedStrategy]) -> Table:
    """Make one row per strategy; speed is relative to the first."""
    first = found[0].samples_per_s if found else 1.0
    columns: list[tuple[Column, CellFormat[SimulatedStrategy]]] = [
        text_field("strategy", "strategy"),
        number_field("samples_per_s", "throughput", format_rate),
        (
            Column("speed", "speed"),
            lambda one: Value(f"{one.samples_per_s / first:.2f}x", one.samples_per_s / first),
        ),
        number_field("updates", "updates", format_count),
        number_field("updates_per_s", "updates/s", "{:,.1f}".format),
        (Column("staleness_mean", "staleness\nmean"), _staleness),
        (
            Column("staleness_max", "max"),
            lambda one: Value(
                str(one.staleness_max) if one.staleness else NOTHING, one.staleness_max
            ),
        ),
        number_field("waiting_share", "exchange\n+ waiting", format_percent),
        number_field("server_busy_share", "busiest\nserver", format_percent),
        number_field("dropped", "dropped", format_count, keep=3),
        number_field("lost", "lost", format_count, keep=2),
        number_field("sent_bytes", "sent", format_bytes, keep=1),
        number_field("elapsed_s", "elapsed", format_duration, keep=4),
    ]
    return tabulate("simulation", found, columns)


def _staleness(one: SimulatedStrategy) -> Value:
    return Value(f"{one.staleness_mean:.1f}" if one.staleness else NOTHING, one.staleness_mean)


def write_chart(found: Sequence[SimulatedStrategy], scenario: Scenario, path: Path) -> None:
    """Write throughput, waiting and staleness as a page or an SVG image, by the file's name."""
    from phalanx.report.make import write_page, write_svg

    figure = simulation_figure(found)
    if path.suffix == ".svg":
        write_svg(figure, path)
        return
    section = Section(id="simulation", title="Strategies", blocks=[figure, simulation_table(found)])
    document = Report(
        title="Simulation", subtitle=describe_scenario(scenario), advice=[], sections=[section]
    )
    write_page(document, path)


def simulation_figure(found: Sequence[SimulatedStrategy]) -> Figure:
    """Draw throughput, shares of the workers' time, and staleness."""
    names = [one.strategy for one in found]
    styles = series_styles(names)
    throughput: Rows = [
        {"bar": one.strategy, "part": "samples/s", "rank": 0, "amount": shorten(one.samples_per_s)}
        for one in found
    ]
    times: Rows = []
    for one in found:
        shares = (1 - one.waiting_share, one.waiting_share)
        times += [
            {"bar": one.strategy, "part": part, "rank": rank, "amount": shorten(100 * share)}
            for rank, (part, share) in enumerate(zip(_PARTS, shares, strict=True))
        ]
    plain = [Swatch(label="samples/s", colour="#0072B2", is_field=True)]
    fields = [Swatch(label=part, colour=tint, is_field=True) for part, tint in _PARTS.items()]
    panels = [
        Panel(title="Throughput", spec=stacked_bars(throughput, ["samples/s"], plain, "samples/s")),
        Panel(
            title="Time of the mean worker",
            spec=stacked_bars(times, list(_PARTS), fields, "share of the time, %"),
        ),
    ]
    stale = {one.strategy: Counter(one.staleness) for one in found if one.staleness}
    if stale:
        bins = bins_of(list(stale.values()))
        rows = [row for name, counts in stale.items() for row in histogram_rows(name, counts, bins)]
        served = {name: styles[name] for name in stale}
        spec = histogram(rows, served, "staleness, updates", "share of gradients, %")
        panels.append(Panel(title="Staleness of applied gradients", spec=spec))
        fields += [
            Swatch(label=name, colour=style.colour, is_field=True) for name, style in served.items()
        ]
    return Figure(
        id="simulated",
        caption="Throughput, time of the mean worker, and staleness of applied gradients.",
        panels=panels,
        legend=fields,
    )
