"""Compare runs side by side: summaries in, rows out; pure.

The first summary is the reference of the others. Called by `phalanx demo` and `phalanx train`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.records.summary import Summary


class RunComparison(msgspec.Struct, kw_only=True, frozen=True):
    """One run in a comparison."""

    strategy: str
    workers: int
    threads: int
    test_accuracy: float | None
    samples_per_s: float
    train_s: float
    elapsed_s: float
    bytes_sent: int
    bytes_per_update: float
    time_shares: dict[str, float]
    speed: float | None
    """Samples per second relative to the first run; None if that one has no speed."""


def compare(summaries: Sequence[Summary]) -> list[RunComparison]:
    """Return one row per run, in the order given."""
    return [_row(summary, summaries[0]) for summary in summaries]


def time_shares(summary: Summary) -> dict[str, float]:
    """Return the mean worker's shares of training time; they sum to one, or are empty."""
    seconds = {
        "input": summary.input_s,
        "compute": summary.compute_s + summary.apply_s,
        "communication": summary.communication_s,
        "waiting": summary.wait_s,
    }
    total = sum(seconds.values())
    return {name: spent / total for name, spent in seconds.items()} if total > 0 else {}


def _row(summary: Summary, reference: Summary) -> RunComparison:
    base = reference.samples_per_s
    return RunComparison(
        strategy=summary.strategy,
        workers=summary.workers,
        threads=summary.threads,
        test_accuracy=summary.test_accuracy,
        samples_per_s=summary.samples_per_s,
        train_s=summary.train_s,
        elapsed_s=summary.elapsed_s,
        bytes_sent=summary.bytes_sent,
        bytes_per_update=summary.bytes_sent / summary.updates if summary.updates else 0.0,
        time_shares=time_shares(summary),
        speed=summary.samples_per_s / base if base > 0 else None,
    )
