"""A start that is slow is not taken for a process that is frozen."""

from __future__ import annotations

from typing import Any

import pytest

from support.runs import Place

# PyDLL keeps the interpreter's lock, as the import of a large library does: no thread can beat.
NETWORK = """
import ctypes

from torch import nn

ctypes.PyDLL(None).sleep(7)


def net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["allreduce", "parameter_server"])
def test_an_import_without_heartbeats_is_waited_for(place: Place, strategy: str) -> None:
    (place.folder / "nets.py").write_text(NETWORK)
    job: dict[str, Any] = {
        "model": "nets:net",
        "data": {"name": "digits", "limit": 300},
        "epochs": 1,
        "workers": 2,
        "threads": 1,
        "strategy": {"name": strategy},
        "deadlines": {"heartbeat_s": 4.0},
    }
    if strategy == "parameter_server":
        job["strategy"]["max_failures"] = 0
    place.write_job(job)
    summary = place.summary("job.yaml")
    assert summary["state"] == "finished"
    assert summary["attempts"] == 1


@pytest.mark.full
def test_two_dozen_workers_and_their_servers_start_on_a_small_machine(place: Place) -> None:
    place.write_job(
        {
            "model": {"name": "mlp", "hidden": [16]},
            "data": "digits",
            "batch": {"global": 96},
            "epochs": 1,
            "workers": 24,
            "threads": 1,
            "observe": {"interval_s": None},
            "strategy": {"name": "parameter_server", "max_failures": 0},
        }
    )
    summary = place.summary("job.yaml")
    assert summary["serving"]["processes_replaced"] == 0
