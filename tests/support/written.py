"""Run directories with events at planted times; a real log stamps them with the present."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.records.events import Event, Started, Step
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.rundir import RunDir, Status
from phalanx.spec.loader import job_from_mapping


def write_run(
    root: Path,
    logs: Mapping[str, Sequence[Event]],
    *,
    job: Mapping[str, Any] | None = None,
    state: str = "finished",
) -> RunDir:
    """A run directory that holds just these events."""
    run = RunDir.create(root, "written")
    # A script says its epochs itself.
    usual = {"workers": 2} if "program" in (job or {}) else {"workers": 2, "epochs": 2}
    spec = job_from_mapping(usual | dict(job or {}))
    write_manifest(run, describe(spec, data_root=root, cache_root=root))
    run.write_status(Status(state=state, pid=1, attempt=1))
    for process, events in logs.items():
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        run.events_path(process).write_bytes(lines)
    return run


def started(rank: int, mono_s: float, *, startup_s: float = 1.0, **fields: Any) -> Started:
    """A worker that has just joined."""
    values: dict[str, Any] = {
        "role": "worker",
        "pid": 100 + rank,
        "host": "here",
        "attempt": 1,
        "threads": 1,
        "cpus": [rank],
        "precision": "fp32",
        "precision_reason": "",
        "wall_s": 1e9 + mono_s,
    }
    return Started(rank=rank, mono_s=mono_s, startup_s=startup_s, **values | fields)


def step(number: int, mono_s: float = 0.0, **fields: Any) -> Step:
    """A step that ended at `mono_s`; phases that are not given took no time."""
    values: dict[str, Any] = {
        "epoch": 0,
        "num_samples": 2,
        "loss_sum": 3.0,
        "num_correct": 1,
        "lr": 0.1,
        "sent_bytes": 8,
        "wall_s": 1e9 + mono_s,
    }
    values |= dict.fromkeys(("input_s", "forward_s", "backward_s", "exchange_s", "apply_s"), 0.0)
    return Step(step=number, mono_s=mono_s, **values | fields)
