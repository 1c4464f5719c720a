"""Add up the time and the bytes of workers over processes, phases and attempts of a run."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.wire.messages import Progress, WorkTimes

NO_WORK = WorkTimes(
    sent_bytes=0, input_s=0.0, compute_s=0.0, communication_s=0.0, wait_s=0.0, apply_s=0.0
)


def work_times(progress: Progress) -> WorkTimes:
    """Return what a worker's last heartbeat says about its time, if it cannot report it itself."""
    return WorkTimes(
        sent_bytes=progress.sent_bytes,
        input_s=progress.input_s,
        compute_s=progress.compute_s,
        communication_s=progress.exchange_s - progress.wait_s,
        wait_s=progress.wait_s,
        apply_s=progress.apply_s,
    )


def add_two(first: WorkTimes, second: WorkTimes) -> WorkTimes:
    """Add two parts of a run."""
    fields = WorkTimes.__struct_fields__
    return WorkTimes(**{key: getattr(first, key) + getattr(second, key) for key in fields})


def add_times(
    first: Mapping[str, WorkTimes], second: Mapping[str, WorkTimes]
) -> dict[str, WorkTimes]:
    """Add two parts of a run by worker; a worker of one part only keeps what it has."""
    added = dict(first)
    for process, own in second.items():
        added[process] = add_two(first[process], own) if process in first else own
    return added
