"""Combine the reports of a split run's workers, beside the forecast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from phalanx.control.coordinator import Splitting
from phalanx.records.summary import SplitLinkSummary, SplitSummary, SplitWorkerSummary
from phalanx.wire.messages import WorkTimes

TRAINING_KINDS = ("activations", "gradients")


def summarise_split(
    splitting: Splitting,
    times: Mapping[str, WorkTimes],
    *,
    step_s: float,
    cpu_s: Mapping[str, float],
) -> SplitSummary:
    """Summarise a split run.

    Args:
        splitting: The forecast, and what the workers measured.
        times: Time breakdown by worker.
        step_s: Mean time of a step.
        cpu_s: Processor time of each process.
    """
    forecast = splitting.placed.forecast
    facts = dict(sorted(splitting.facts.items(), key=lambda entry: entry[1].rank))
    kinds: Counter[str] = Counter()
    for one in facts.values():
        for entry in one.sent:
            kinds[entry.kind] += entry.sent_bytes
    computed = {
        name: times[name].compute_s + times[name].apply_s
        for name, one in facts.items()
        if one.parts and name in times
    }
    mean_s = sum(computed.values()) / max(1, len(computed))
    sockets = [one.socket_bytes for one in facts.values() if one.socket_bytes is not None]
    samples = max((one.samples for one in facts.values()), default=0)
    steps = max((one.steps for one in facts.values()), default=0)
    # The last batch of an epoch may be smaller: what depends on samples is scaled to a full one.
    by_rows = sum(kinds[kind] for kind in TRAINING_KINDS) * splitting.placed.rows
    return SplitSummary(
        placement=forecast.placement,
        places=forecast.places,
        predicted_step_s=forecast.step_s,
        step_s=step_s,
        predicted_imbalance=forecast.imbalance,
        imbalance=max(computed.values()) / mean_s if mean_s > 0 else 1.0,
        predicted_bytes_per_step=forecast.sent_bytes,
        bytes_per_step=by_rows / max(1, samples) + kinds["parameters"] / max(1, steps),
        bytes_by_kind=dict(sorted(kinds.items())),
        links=[
            SplitLinkSummary(
                source=one.rank,
                target=entry.target,
                kind=entry.kind,
                sent_bytes=entry.sent_bytes,
                messages=entry.messages,
            )
            for one in facts.values()
            for entry in one.sent
        ],
        workers=[
            SplitWorkerSummary(
                rank=one.rank,
                parts=one.parts,
                compute_s=times[name].compute_s + times[name].apply_s,
                communication_s=times[name].communication_s,
                wait_s=times[name].wait_s,
                cpu_s=cpu_s.get(name),
                predicted_compute_s=forecast.busy_s[one.rank],
            )
            for name, one in facts.items()
        ],
        socket_bytes=sum(sockets) if sockets else None,
    )
