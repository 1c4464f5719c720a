"""The first job of the documentation, from the command line and from Python."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.launch.fork_server import OFF, OWN
from phalanx.records.events import (
    Checkpoint,
    Clock,
    Epoch,
    Evaluation,
    Finished,
    HostSample,
    Started,
    Step,
)
from phalanx.records.log import read_logs
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.records.usage import host_uses, process_uses, training_windows
from phalanx.spec.loader import job_from_mapping
from support.phases import worker_phases
from support.runs import Place, events_of
from support.warm import starting

FIRST_JOB = """\
name: first-job
model: mnist-cnn
data: digits
batch: {global: 128}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: milestones, at: [0.5, 0.75], factor: 0.1}
epochs: 3
workers: 2
strategy: allreduce
seed: 1
"""
NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 1294, 144, 359


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Place:
    place = Place(tmp_path_factory.mktemp("first"), cache)
    (place.folder / "job.yaml").write_text(FIRST_JOB)
    return place


@pytest.fixture(scope="module")
def summary(place: Place) -> dict[str, Any]:
    return place.summary("job.yaml")


@pytest.fixture(scope="module")
def run(summary: dict[str, Any]) -> RunDir:
    return RunDir.open(Path(summary["run_dir"]))


def test_the_summary_says_what_was_asked_and_what_came_of_it(summary: dict[str, Any]) -> None:
    assert set(summary) == set(Summary.__struct_fields__)
    asked = {
        "name": "first-job",
        "state": "finished",
        "strategy": "allreduce",
        "model": "mnist-cnn",
        "data": "digits",
        "workers": 2,
        "precision": "fp32",
        "seed": 1,
        "global_batch": 128,
        "epochs": 3,
        "samples": 3 * NUM_TRAIN,
        "updates": 3 * 11,
        "attempts": 1,
        "stopped_early": False,
        "cause": None,
    }
    assert {key: summary[key] for key in asked} == asked
    # Three short epochs with dropout are enough for most digits, or something is wrong.
    assert summary["test_accuracy"] > 0.6
    assert 0 < summary["train_loss"] < 2.3
    assert 0 < summary["train_s"] < summary["elapsed_s"]
    assert summary["samples_per_s"] == pytest.approx(summary["samples"] / summary["train_s"])
    for key in ("input_s", "compute_s", "communication_s", "wait_s", "apply_s"):
        assert 0 <= summary[key] < summary["elapsed_s"]
    assert 0 <= summary["overlapped_s"] <= summary["compute_s"]
    # Two workers and the controller on as many cores as there are.
    assert 0 < summary["cpu_s"] < 2 * summary["elapsed_s"] * max(2, len(os.sched_getaffinity(0)))
    assert summary["memory_peak_bytes"] > 50 << 20
    # Every step sends the gradients once around a ring of two, and little else is sent.
    gradients = summary["updates"] * summary["parameters"] * 4 * 2
    assert gradients < summary["bytes_sent"] < 1.2 * gradients


def test_the_summary_equals_the_files_of_the_run(summary: dict[str, Any], run: RunDir) -> None:
    assert json.loads((run.path / "summary.json").read_text()) == summary
    status = run.read_status()
    assert (status.state, status.attempt, status.cause) == ("finished", 1, None)
    [last] = [e for e in events_of(run, "worker-0") if isinstance(e, Epoch) and e.epoch == 2]
    assert (last.samples, last.updates) == (summary["samples"], summary["updates"])
    for key in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert getattr(last, key) == summary[key]
    [test] = [
        e for e in events_of(run, "worker-0") if isinstance(e, Evaluation) if e.part == "test"
    ]
    assert (test.loss, test.accuracy) == (summary["test_loss"], summary["test_accuracy"])
    assert test.num_samples == NUM_TEST


def test_every_process_left_a_complete_log(run: RunDir) -> None:
    events = [events_of(run, f"worker-{rank}") for rank in range(2)]
    steps = [[event for event in one if isinstance(event, Step)] for one in events]
    for one, of_rank in zip(events, steps, strict=True):
        assert [type(event) for event in one].count(Started) == 1
        assert isinstance(one[-1], Finished)
        assert [event.step for event in of_rank] == list(range(1, 34))
    for epoch in range(3):
        seen = [event.num_samples for one in steps for event in one if event.epoch == epoch]
        assert sum(seen) == NUM_TRAIN
    lr = [event.lr for event in steps[0]]
    assert lr == sorted(lr, reverse=True)
    assert [round(rate, 6) for rate in sorted(set(lr), reverse=True)] == [0.05, 0.005, 0.0005]
    # Only the chief measures for all and saves.
    for kind, count in ((Epoch, 3), (Evaluation, 4), (Checkpoint, 3)):
        assert [sum(isinstance(event, kind) for event in one) for one in events] == [count, 0]
    assert [
        event.num_samples
        for event in events[0]
        if isinstance(event, Evaluation) and event.part == "validation"
    ] == [NUM_VALIDATION] * 3
    assert isinstance(events_of(run, "controller")[-1], Finished)


def test_resources_and_phases_can_be_read_from_the_logs(
    summary: dict[str, Any], run: RunDir
) -> None:
    logs = read_logs(run.path / "events")
    assert set(process_uses(logs)) == {"controller", "worker-0", "worker-1"}
    [machine] = host_uses(logs).values()
    [window] = training_windows(logs).values()
    assert 0 < machine.duration_s <= window.duration_s
    assert summary["train_s"] <= window.duration_s < summary["elapsed_s"]
    # What went around the ring went through the loopback, and nothing is lost on the way.
    assert machine.sent_bytes["lo"] > 0.9 * summary["bytes_sent"]
    phases = worker_phases(logs)
    for name in ("input_s", "communication_s", "wait_s", "apply_s", "overlapped_s"):
        mean = sum(getattr(one, name) for one in phases.values()) / 2
        assert mean == pytest.approx(summary[name], abs=1e-6)
    for one in phases.values():
        assert one.total_s <= 1.05 * window.duration_s
    clocks = [e for events in logs.values() for e in events if isinstance(e, Clock)]
    assert clocks
    # One machine, one clock.
    assert all(abs(clock.offset_s) <= clock.error_s for clock in clocks)
    watching = [
        name for name, events in logs.items() if any(isinstance(e, HostSample) for e in events)
    ]
    assert watching == ["worker-0"]


def test_the_manifest_repeats_the_job(place: Place, run: RunDir) -> None:
    job = phalanx.load_job(place.folder / "job.yaml")
    assert job_from_mapping(read_manifest(run).job) == job


def test_two_trainings_at_once_do_not_meet_and_the_seed_decides(
    place: Place, summary: dict[str, Any]
) -> None:
    """Ports come from the system: a port that another run has taken disturbs nobody."""
    with ThreadPoolExecutor(2) as pool:
        same, other = pool.map(lambda seed: place.summary("job.yaml", "--seed", seed), ("1", "2"))
    assert same["run_dir"] != summary["run_dir"]
    decided = ("parameters_sha256", "train_loss", "val_loss", "val_accuracy", "test_accuracy")
    assert [same[key] for key in decided] == [summary[key] for key in decided]
    assert other["parameters_sha256"] != summary["parameters_sha256"]
    assert other["samples"] == summary["samples"]


def test_the_same_job_from_python_gives_the_same_parameters(
    place: Place, summary: dict[str, Any]
) -> None:
    result = phalanx.train(
        phalanx.load_job(place.folder / "job.yaml"),
        runs=place.folder / "elsewhere",
        data_root=place.data,
        cache_root=place.cache,
    )
    assert result.parameters_sha256 == summary["parameters_sha256"]
    assert Path(result.run_dir).parent == place.folder / "elsewhere"


OWN_NETWORK = """
import os
from torch import nn

def build(input_shape, num_classes):
    assert os.environ["SAID_BY_THE_USER"] == "yes"
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
"""


@pytest.mark.parametrize(
    ("backend", "strategy"),
    [
        ("native", "allreduce"),
        pytest.param(
            "native",
            {"name": "parameter_server", "consistency": "bsp"},
            marks=pytest.mark.full,
        ),
        pytest.param("ddp", "allreduce", marks=pytest.mark.full),
    ],
    ids=["group", "servers", "ddp"],
)
def test_a_warm_start_changes_no_bit(
    place: Place,
    backend: str,
    strategy: object,
    shared_fork_server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (place.folder / "own_network.py").write_text(OWN_NETWORK)
    monkeypatch.setenv("SAID_BY_THE_USER", "yes")
    job = {
        "name": "either",
        "model": "own_network:build",
        "data": "digits",
        "epochs": 1,
        "workers": 2,
        "strategy": strategy,
        "backend": backend,
    }
    found = {}
    for way, setting in (("cold", OFF), ("warm", shared_fork_server), ("owned", OWN)):
        with starting(setting):
            summary = place.summary(place.write_job(job, f"{way}.yaml"))
        run = RunDir.open(Path(summary["run_dir"]))
        events = [*events_of(run, "worker-0"), *events_of(run, "worker-1")]
        starts = [(one.cpus, one.threads) for one in events if isinstance(one, Started)]
        found[way] = (summary["parameters_sha256"], summary["val_loss"], starts)
    assert found["cold"] == found["warm"] == found["owned"]
