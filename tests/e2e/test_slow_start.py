"""A start that is slow is not taken for a process that is frozen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.launch.fork_server import OFF, OWN
from support.runs import Place
from support.warm import starting

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
@pytest.mark.timeout(400)
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_32_workers_and_their_server_start_on_a_small_machine(place: Place, start: str) -> None:
    """Cold, 34 processes import torch at once: they are waited for while they come up."""
    place.write_job(
        {
            "model": {"name": "mlp", "hidden": [16]},
            "data": "digits",
            "batch": {"global": 128},
            "epochs": 1,
            "workers": 32,
            "threads": 1,
            "observe": {"interval_s": None},
            "strategy": {"name": "parameter_server", "max_failures": 0},
        }
    )
    with starting(OFF if start == "cold" else OWN), place.start("job.yaml", "--json") as training:
        output, errors = training.process.communicate(timeout=360)
    assert training.process.returncode == 0, errors
    summary = json.loads(output)
    assert summary["serving"]["processes_replaced"] == 0
