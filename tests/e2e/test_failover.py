"""Servers and workers are lost together, under every rule; each batch counts once on every server.

The witness is each restored server's own ledger: the samples behind the updates that are in its
parameters. It came with the copy that restored it, and knows nothing of the controller's count.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from phalanx.records.events import ServerRestored
from phalanx.records.rundir import RunDir
from support.runs import LIMIT_S, Place, events_of, is_running
from support.victims import SLOW_MODEL, Victims, last_totals
from support.waiting import wait_until

NUM_TRAIN, EPOCHS, WORKERS = 1294, 12, 3
JOB: dict[str, Any] = {
    "name": "failover",
    "model": "my_nets:build",
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "epochs": EPOCHS,
    "workers": WORKERS,
}
SERVED: dict[str, Any] = {
    "name": "parameter_server",
    "consistency": "async",
    "dispatch": "dynamic",
    "servers": 2,
    "min_shard_bytes": 1024,
    "snapshot_s": 1.0,
}
CASES: dict[str, dict[str, Any]] = {
    "async": {},
    "bsp": {"consistency": "bsp"},
    "ssp": {"consistency": "ssp", "staleness": 2},
    "dssp": {"consistency": "dssp", "staleness_range": [1, 4]},
    "k_sync": {"consistency": "k_sync", "k": 2},
    "k_async": {"consistency": "k_async", "k": 2},
    "backup": {"consistency": "bsp", "backup": 1},
    "delay compensation": {"delay_compensation": "adaptive"},
    "int8": {"compression": "int8"},
    "bf16": {"compression": "bf16", "pull_compression": "bf16"},
    "overlap": {"overlap": True},
    "one server": {"servers": 1},
    "one server, bsp": {"servers": 1, "consistency": "bsp"},
    "colocated": {"servers": "colocated"},
    "colocated, bsp": {"servers": "colocated", "consistency": "bsp"},
    "state by name": {"consistency": "bsp"},
}
# Factored moments are state that is no slice of the flat buffer.
OPTIMIZERS = {"state by name": {"name": "torch.optim:Adafactor", "lr": 0.01}}
# Late gradients are dropped by rule: a batch counts at most once there.
DROPPING = {"k_sync", "backup"}


def victims_of(servers: int | str) -> list[str]:
    """Several at once: all servers in processes of their own, and a worker."""
    if servers == "colocated":
        return ["worker-0", "worker-1"]
    return [*(f"server-{index}" for index in range(int(servers))), "worker-1"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [name if name == "async" else pytest.param(name, marks=pytest.mark.full) for name in CASES],
)
def test_batches_count_once_on_servers_that_were_lost_together(place: Place, case: str) -> None:
    strategy = SERVED | CASES[case]
    lost = victims_of(strategy["servers"])
    (place.folder / "my_nets.py").write_text(SLOW_MODEL)
    (place.folder / "slow").touch()
    optimizer = OPTIMIZERS.get(case, JOB["optimizer"])
    place.write_job(JOB | {"strategy": strategy, "optimizer": optimizer})
    with place.start("job.yaml", "--json") as training:
        training.worker_pids(WORKERS)
        victims = Victims(training)
        victims.wait_for_steps(30)
        pids = [victims.wait_for(name) for name in lost]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        num_servers = sum(name.startswith("server") for name in lost) or len(lost)
        wait_until(
            lambda: victims.num_restored() == num_servers,
            "the servers to be restored",
            limit_s=LIMIT_S,
        )
        (place.folder / "slow").unlink()
        pids = list(victims.pids().values())
        output, errors = training.process.communicate(timeout=LIMIT_S)
        assert training.process.returncode == 0, errors
    summary = json.loads(output)
    run = RunDir.open(Path(summary["run_dir"]))
    assert not any(map(is_running, pids))
    assert (summary["epochs"], summary["samples"]) == (EPOCHS, EPOCHS * NUM_TRAIN)
    assert summary["serving"]["processes_replaced"] == len(lost)
    restored = [one for one in events_of(run, "controller") if isinstance(one, ServerRestored)]
    assert len(restored) == num_servers
    hosts = range(WORKERS) if strategy["servers"] == "colocated" else range(strategy["servers"])
    role = "worker" if strategy["servers"] == "colocated" else "server"
    for index in hosts:
        facts = last_totals(run, f"{role}-{index}")
        if case in DROPPING:
            assert 0 < facts.samples <= EPOCHS * NUM_TRAIN
        else:
            assert facts.samples == EPOCHS * NUM_TRAIN, (index, restored)
        assert facts.gathered == 0
    assert summary["test_accuracy"] > 0.6
