"""Explain a plan: the choice in one sentence, its reasons, and the alternatives.

Pure text from search results; nothing is predicted here. Every reason carries the figures that it
rests on, so that a reader can check it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Candidate
from phalanx.plan.result import Interval, Prediction
from phalanx.plan.search import Option, PlanSearchResult
from phalanx.plan.variants import EFFECTS
from phalanx.report.format import count_noun, format_duration, format_percent

_NOTEWORTHY = 0.1
_MOST_REFUSALS = 3


def choice_sentence(findings: PlanSearchResult) -> str:
    """Describe the choice and its predicted time, cost and energy."""
    chosen, prediction = findings.chosen, _prediction(findings.chosen)
    workers = chosen.candidate.num_workers
    many = f" ({workers} workers)" if workers != len(chosen.machines) else ""
    how = chosen.candidate.strategy.label()
    with_how = "alone" if how == "single" else f"with {how}"
    text = f"Use {machines_label(chosen.machines)}{many} {with_how}: "
    text += _span(prediction.total_s)
    if prediction.cost is not None:
        text += f", costs {prediction.cost.value:.2f}"
    if prediction.energy_j is not None:
        text += f", {prediction.energy_j.value / 3.6e6:.3f} kWh"
    return text + f"; {_why(findings)}."


def reasons(findings: PlanSearchResult, cluster: ClusterModel) -> list[str]:
    """Return the reasons for the choice and the facts behind them."""
    chosen = findings.chosen
    found = [_limits(_prediction(chosen)), _split(chosen)]
    found += [_all_machines(findings, cluster), _looser(findings), _parts(findings)]
    found += _refusals(findings)
    if not findings.complete:
        found.append(
            f"{len(cluster.machines)} machines have too many sets to compare all: "
            f"{len(findings.options):,} promising candidates were compared"
        )
    return [text for text in found if text]


def _why(findings: PlanSearchResult) -> str:
    """Compare with the best alternative that differs in kind: one machine, or several."""
    chosen, objective = findings.chosen, findings.objective
    one_machine = len(chosen.machines) == 1
    others = [
        option
        for option in findings.options
        if option.refusal is None and (len(option.machines) == 1) != one_machine
    ]
    limits = (
        "" if objective.deadline_s is None and objective.budget is None else " within the limits"
    )
    if not others:
        workers = {option.candidate.num_workers for option in findings.options}
        if one_machine and len(workers) > 1:
            return _why_workers(findings)
        return f"the best for {objective.goal}{limits}"
    other = _fastest(others)
    ratio = _prediction(other).total_s.value / _prediction(chosen).total_s.value
    if one_machine and ratio >= 1:
        share = format_percent(_exchange_share(_prediction(other)))
        return (
            f"one machine is fastest: {machines_label(other.machines)} with "
            f"{other.candidate.strategy.label()} would take {ratio:.2f} times as long, "
            f"{share} of each step for exchange and waiting"
        )
    if ratio >= 1:
        return f"{ratio:.2f} times as fast as the best single machine, {other.machines[0]}"
    return (
        f"the best for {objective.goal}{limits}, although {machines_label(other.machines)} would "
        f"be {1 / ratio:.2f} times as fast"
    )


def _why_workers(findings: PlanSearchResult) -> str:
    chosen = findings.chosen
    workers = chosen.candidate.num_workers
    others = [
        option
        for option in findings.options
        if option.refusal is None and option.candidate.num_workers != workers
    ]
    if not others:
        return f"the best for {findings.objective.goal}"
    other = _fastest(others)
    ratio = _prediction(other).total_s.value / _prediction(chosen).total_s.value
    count = other.candidate.num_workers
    workers_there = count_noun(count, "worker")
    if ratio >= 1:
        return (
            f"{workers_there} with {other.candidate.strategy.label()} would take "
            f"{ratio:.2f} times as long"
        )
    return f"{workers_there} would gain less than the predictions can resolve"


def _parts(findings: PlanSearchResult) -> str:
    """Compare splitting the network with replicating it, each at its best."""
    best: dict[str, Prediction] = {}
    for option in findings.options:
        name = option.candidate.strategy.name
        if option.prediction is not None and name in ("split", "allreduce"):
            known = best.get(name)
            if known is None or option.prediction.total_s.value < known.total_s.value:
                best[name] = option.prediction
    if len(best) < 2:
        return ""
    split, copies = best["split"], best["allreduce"]
    ratio = copies.step_s.value / split.step_s.value
    which = "as fast" if ratio >= 1 else "as slow"
    return (
        f"the network split over machines would be {max(ratio, 1 / ratio):.2f} times {which} as a "
        f"copy on each: every worker sends {split.sent_bytes_per_step / 1e6:.2f} MB per step "
        f"against {copies.sent_bytes_per_step / 1e6:.2f} MB, and computes "
        f"{split.parts.compute_s * 1e3:.0f} ms and waits {split.parts.wait_s * 1e3:.0f} ms against "
        f"{copies.parts.compute_s * 1e3:.0f} ms and {copies.parts.wait_s * 1e3:.0f} ms"
    )


def _limits(prediction: Prediction) -> str:
    parts = prediction.parts
    shares = {
        "computing": parts.compute_s,
        "exchanging": parts.communication_s,
        "waiting for others": parts.wait_s,
        "updating": parts.apply_s,
    }
    total_s = parts.total_s
    listed = ", ".join(
        f"{name} {format_percent(spent_s / total_s)}"
        for name, spent_s in shares.items()
        if spent_s / total_s >= 0.005
    )
    return f"a step takes {prediction.step_s.value * 1e3:.0f} ms: {listed}"


def _split(option: Option) -> str:
    sizes = {seat.machine: sum(seat.batches) for seat in option.candidate.seats if seat.batches}
    if len(sizes) < 2 or max(sizes.values()) - min(sizes.values()) <= 1:
        return ""
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    first, last = ordered[0], ordered[-1]
    return (
        f"batches follow speed: {first} gets {sizes[first]} of "
        f"{option.candidate.global_batch} samples, {last} {sizes[last]}"
    )


def _all_machines(findings: PlanSearchResult, cluster: ClusterModel) -> str:
    chosen = findings.chosen
    if len(chosen.machines) == len(cluster.machines):
        return ""
    # Include refused candidates: their predicted time explains why they are not used.
    accepted = EFFECTS[: EFFECTS.index(findings.objective.accept) + 1]
    everyone = [
        option
        for option in findings.options
        if len(option.machines) == len(cluster.machines)
        and option.prediction is not None
        and option.effect in accepted
    ]
    if not everyone:
        return ""
    best = _fastest(everyone)
    prediction = _prediction(best)
    return (
        f"all {len(cluster.machines)} machines would take {_span(prediction.total_s)}"
        + (f" and cost {prediction.cost.value:.2f}" if prediction.cost is not None else "")
        + f", {format_percent(_exchange_share(prediction))} of each step for exchange and waiting"
    )


def _looser(findings: PlanSearchResult) -> str:
    """Describe the gain of accepting less exact results."""
    allowed = EFFECTS.index(findings.objective.accept)
    looser = [
        option
        for option in findings.options
        if option.prediction is not None and EFFECTS.index(option.effect) > allowed
    ]
    if not looser:
        return ""
    best = _fastest(looser)
    gain = _prediction(findings.chosen).total_s.value / _prediction(best).total_s.value - 1
    if gain < _NOTEWORTHY:
        return ""
    return (
        f"{best.candidate.strategy.label()} on {machines_label(best.machines)} would be "
        f"{format_percent(gain)} faster, but changes what is learnt: --accept {best.effect}"
    )


def _refusals(findings: PlanSearchResult) -> list[str]:
    """Return the most frequent reasons for infeasible candidates."""
    counts = Counter(
        option.refusal
        for option in findings.options
        if option.prediction is None and option.refusal is not None
    )
    return [
        f"{count} candidates refused: {reason}"
        for reason, count in counts.most_common(_MOST_REFUSALS)
    ]


def _exchange_share(prediction: Prediction) -> float:
    parts = prediction.parts
    return (parts.communication_s + parts.wait_s) / parts.total_s


def _span(interval: Interval) -> str:
    low, high = format_duration(interval.low), format_duration(interval.high)
    return f"{format_duration(interval.value)} ({low} to {high})"


def _prediction(option: Option) -> Prediction:
    assert option.prediction is not None
    return option.prediction


def _fastest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: _prediction(option).total_s.value)


def best_options(findings: PlanSearchResult, most: int) -> list[Option]:
    """Return the chosen option, then the best of each machine set with each strategy.

    Shows alternatives that differ; at most half of the rows are refused options.
    """
    kept: dict[tuple[object, ...], Option] = {_kind(findings.chosen): findings.chosen}
    for option in findings.options:
        kept.setdefault(_kind(option), option)
    good = [option for option in kept.values() if option.refusal is None]
    refused = [option for option in kept.values() if option.refusal is not None]
    rest = min(len(refused), most // 2)
    return good[: most - rest] + refused[:rest]


def _kind(option: Option) -> tuple[object, ...]:
    candidate = option.candidate
    return option.machines, candidate.num_workers, candidate.strategy.label()


_NAMED_MACHINES = 4


def servers_label(candidate: Candidate) -> str:
    """Format the placement of servers: `-`, `colocated`, or how many on which machine."""
    strategy = candidate.strategy
    if not strategy.uses_servers:
        return "-"
    if strategy.processes(candidate.num_workers).servers == 0:
        return "colocated"
    where = [f"{seat.servers} on {seat.machine}" for seat in candidate.seats if seat.servers]
    return ", ".join(where)


def machines_label(names: Sequence[str]) -> str:
    """Format machine names, or their number: `ada, bob`, `ada and 11 more`."""
    if len(names) <= _NAMED_MACHINES:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"


def batches_label(sizes: Sequence[int]) -> str:
    """Format the batch size per worker: `128`, `4 x 32`, `80 + 48`, `2 to 40`."""
    if len(sizes) == 1:
        return str(sizes[0])
    if max(sizes) - min(sizes) <= 1:
        return f"{len(sizes)} x {max(sizes)}"
    if len(sizes) <= _NAMED_MACHINES:
        return " + ".join(str(size) for size in sizes)
    return f"{min(sizes)} to {max(sizes)}"
