"""Define `profile/<process>.json`: operator times of profiled epochs of one process.

Written by `worker.profile` after each profiled epoch, read by `report.profile`. Times are *self*
times of the training thread: an operator without those that it called. They never overlap, so they
add up to at most `wall_s`.
"""

from __future__ import annotations

import msgspec

from phalanx.errors import StoreError
from phalanx.records.rundir import RunDir, read_record
from phalanx.store.atomic import write_atomically


class OperatorTime(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All calls of one operator in one part of the step."""

    span: str
    """Span that it was called in: input, forward, loss, backward, apply, regulariser, all_reduce,
    average, push or pull; empty outside of all of them."""
    name: str
    """Name given by the framework; empty for time of the span between operators."""
    calls: int
    self_s: float
    memory_bytes: int = 0
    """Allocated minus freed by it, if the job asked for memory."""


class EpochProfile(msgspec.Struct, kw_only=True):
    """One epoch of one process."""

    epoch: int
    """Counted from 0."""
    wall_s: float
    """Profiled time: training, without the pauses in which the profiler was read."""
    steps: int
    operators: list[OperatorTime]
    beside: list[OperatorTime]
    """Work beside the training thread, such as an exchange that overlaps with backward: from begin
    to end, waiting included, and no part of `wall_s`."""


class ProcessProfile(msgspec.Struct, kw_only=True):
    """All profiled epochs of one process."""

    process: str
    engine: str
    """Framework of the operators, with version, such as `torch 2.13.0`."""
    epochs: list[EpochProfile] = msgspec.field(default_factory=list)


def write_profile(run: RunDir, profile: ProcessProfile) -> None:
    """Replace the profile of a process atomically."""
    path = run.profile_path(profile.process)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {path.parent}: {error.strerror}") from error
    write_atomically(path, msgspec.json.encode(profile))


def read_profile(run: RunDir, process: str) -> ProcessProfile | None:
    """Read the profile of a process, if it has one."""
    path = run.profile_path(process)
    return read_record(path, ProcessProfile) if path.exists() else None


def read_profiles(run: RunDir) -> list[ProcessProfile]:
    """Read the profiles of all processes of a run, in the order of their names."""
    paths = sorted((run.path / "profile").glob("*.json"))
    return [read_record(path, ProcessProfile) for path in paths]
