"""`backend: tensorflow` as a user runs it: real processes, real data, real faults.

MNIST cannot be had everywhere these tests run, so the handwritten digits that come with
scikit-learn stand in for it. TensorFlow takes seconds to start, so one run of each kind serves
several tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.records.events import Checkpoint, Epoch, Evaluation, Event, Failure, Step, Switched
from phalanx.records.log import read_logs
from phalanx.records.position import read_position
from phalanx.records.profile import read_profiles
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.records.usage import process_uses, training_windows
from support.phases import worker_phases
from support.runs import Place, Training, events_of, is_running, started_pid
from support.waiting import wait_until

pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

NUM_TRAIN, NUM_TEST, BATCH = 1294, 359, 64
NUM_STEPS = -(-NUM_TRAIN // BATCH)
SERVING = {"name": "parameter_server", "dispatch": "dynamic", "servers": 1}
SWITCH = {
    "name": "switch",
    "handover": "restart",
    "phases": [
        {"strategy": "allreduce"},
        {"strategy": SERVING, "at": 0.3},
        {"strategy": "allreduce", "epoch": 8},
    ],
}
JOB = {
    "name": "tf",
    "backend": "tensorflow",
    "model": {"name": "mlp", "hidden": [256]},
    "data": "digits",
    "batch": {"global": BATCH},
    "optimizer": {"name": "adam", "lr": 0.003},
    "epochs": 10,
    "workers": 2,
    # Five processes that import TensorFlow on two busy cores.
    "deadlines": {"start_s": 200.0, "heartbeat_s": 10.0},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single", "workers": 1},
    "allreduce": {"strategy": "allreduce"},
    "parameter_server": {"strategy": SERVING | {"servers": 2, "min_shard_bytes": 4096}},
    "mirrored": {"strategy": "mirrored"},
    "central_storage": {"strategy": "central_storage"},
    "switch": {"strategy": SWITCH},
}
# What was promised: from the fault to its being noticed.
NOTICED_S = 15.0


class Runs:
    """One finished run per strategy, made when it is first asked for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._found: dict[str, dict[str, Any]] = {}

    def summary(self, strategy: str) -> dict[str, Any]:
        if strategy not in self._found:
            job = self.place.write_job(JOB | STRATEGIES[strategy], f"{strategy}.yaml")
            self._found[strategy] = self.place.summary(job)
        return self._found[strategy]

    def run(self, strategy: str) -> RunDir:
        return RunDir.open(Path(self.summary(strategy)["run_dir"]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Runs:
    return Runs(Place(tmp_path_factory.mktemp("tensorflow"), cache))


def of_kind(run: RunDir, process: str, kind: type[Event]) -> list[Any]:
    return [event for event in events_of(run, process) if isinstance(event, kind)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_the_digits(runs: Runs, strategy: str) -> None:
    summary = runs.summary(strategy)
    assert set(summary) == set(Summary.__struct_fields__)
    assert summary["test_accuracy"] >= 0.97
    assert (summary["strategy"], summary["epochs"]) == (strategy, 10)
    assert summary["samples"] == 10 * NUM_TRAIN
    assert summary["parameters"] == 65 * 256 + 257 * 10
    assert 0 < summary["train_s"] < summary["elapsed_s"]
    for key in ("input_s", "compute_s", "communication_s", "wait_s", "apply_s"):
        assert 0 <= summary[key] < summary["elapsed_s"]


@pytest.mark.parametrize("strategy", ["allreduce", "mirrored", "central_storage"])
def test_strategies_in_lockstep_learn_what_one_worker_learns(runs: Runs, strategy: str) -> None:
    """The same batches in the same order, summed over workers, whatever the cut."""
    alone, together = runs.summary("single"), runs.summary(strategy)
    assert together["updates"] == alone["updates"] == 10 * NUM_STEPS
    # Sums over two workers round differently, and Adam makes the most of it.
    assert together["train_loss"] == pytest.approx(alone["train_loss"], rel=0.02)
    assert together["test_accuracy"] == pytest.approx(alone["test_accuracy"], abs=0.01)


def test_one_worker_of_tensorflow_learns_as_one_of_torch(runs: Runs) -> None:
    """The same law of weights, samples, order and rule; only the drawn weights differ."""
    name = runs.place.write_job(JOB | {"backend": "native", "strategy": "single", "workers": 1})
    native, found = runs.place.summary(name), runs.summary("single")
    assert (native["updates"], native["samples"]) == (found["updates"], found["samples"])
    assert native["parameters"] == found["parameters"]
    assert found["test_accuracy"] == pytest.approx(native["test_accuracy"], abs=0.015)


@pytest.mark.parametrize("strategy", ["allreduce", "parameter_server"])
def test_records_have_the_shape_of_native_ones(runs: Runs, strategy: str) -> None:
    summary, run = runs.summary(strategy), runs.run(strategy)
    serving = strategy == "parameter_server"
    logs = read_logs(run.path / "events")
    helpers = {"chief-0", "server-0", "server-1", "evaluator-0"} if serving else set()
    assert set(process_uses(logs)) == {"controller", "worker-0", "worker-1"} | helpers
    steps = [event for rank in range(2) for event in of_kind(run, f"worker-{rank}", Step)]
    for epoch in range(10):
        own = [step for step in steps if step.epoch == epoch]
        assert sum(step.num_samples for step in own) == NUM_TRAIN
    assert len({step.step for step in steps}) == summary["updates"]
    phases = worker_phases(logs)
    assert set(phases) == {"worker-0", "worker-1"}
    for key in ("input_s", "communication_s", "wait_s", "apply_s"):
        mean = sum(getattr(one, key) for one in phases.values()) / 2
        assert mean == pytest.approx(summary[key], abs=1e-5)
    [window] = training_windows(logs).values()
    assert 0 < window.duration_s < summary["elapsed_s"]
    chief = "controller" if serving else "worker-0"
    epochs = of_kind(run, chief, Epoch)
    assert [event.epoch for event in epochs] == list(range(10))
    assert epochs[-1].val_accuracy == summary["val_accuracy"]
    assert of_kind(run, chief, Checkpoint)
    [test] = [event for event in of_kind(run, chief, Evaluation) if event.part == "test"]
    assert (test.accuracy, test.num_samples) == (summary["test_accuracy"], NUM_TEST)


def test_a_parameter_server_counts_one_update_per_part_and_its_staleness(runs: Runs) -> None:
    summary = runs.summary("parameter_server")
    serving = summary["serving"]
    assert serving["servers"] == 2
    assert summary["updates"] == serving["pushes_applied"] == 10 * NUM_STEPS * 2
    assert sum(serving["staleness_histogram"].values()) == summary["updates"]
    # Two workers on two cores: somebody was overtaken at some point.
    assert serving["staleness_max"] >= 1


def test_a_switch_hands_weights_and_momentum_over_both_ways(runs: Runs) -> None:
    summary, run = runs.summary("switch"), runs.run("switch")
    moves = [(one["before"], one["after"]) for one in summary["switches"]]
    assert moves == [("allreduce", "parameter_server"), ("parameter_server", "allreduce")]
    assert len(of_kind(run, "controller", Switched)) == 2
    # 0.3 of ten epochs, at the first whole batch, which is the beginning of the fourth epoch.
    assert [one["samples"] for one in summary["switches"]] == [3 * NUM_TRAIN, 8 * NUM_TRAIN]
    # Three epochs with one update per batch, five with two, two with one again.
    assert summary["updates"] == (3 + 2 * 5 + 2) * NUM_STEPS
    kept = sorted(run.checkpoints.glob("switch-*.safetensors"))
    assert [read_position(path).phase for path in kept] == [1, 2]
    # A rule that had forgotten its moments would jump: losses go on falling across both switches.
    epochs = [e for name in ("worker-0", "controller") for e in of_kind(run, name, Epoch)]
    losses = [event.train_loss for event in sorted(epochs, key=lambda event: event.epoch)]
    assert len(losses) == 10
    assert losses[3] < losses[2]
    assert losses[8] < 2 * losses[7]


def test_reports_and_timelines_read_it_like_any_run(runs: Runs) -> None:
    paths = [str(runs.run(strategy).path) for strategy in ("allreduce", "parameter_server")]
    page = runs.place.folder / "report.html"
    assert runs.place.run("report", *paths, "-o", str(page)).returncode == 0
    assert "parameter_server" in page.read_text()
    trace = runs.place.folder / "trace.json"
    assert runs.place.run("trace", paths[1], "-o", str(trace)).returncode == 0
    assert "worker-1" in trace.read_text()
    shown = runs.place.run("runs", "show", paths[1])
    assert shown.returncode == 0, shown.stderr


def test_a_run_is_taken_up_where_it_was(runs: Runs) -> None:
    before = runs.summary("allreduce")
    done = runs.place.run("train", "--resume", before["run_dir"], "--epochs", "11", "--json")
    assert done.returncode == 0, done.stderr
    summary = RunDir.open(Path(before["run_dir"])).read_summary()
    assert summary is not None
    assert (summary.epochs, summary.samples) == (11, 11 * NUM_TRAIN)
    assert summary.attempts == 2
    # A resumed run that had forgotten its moments would end elsewhere than one without a break.
    straight = runs.place.summary("allreduce.yaml", "--epochs", "11")
    for key in ("train_loss", "val_loss", "test_loss"):
        assert getattr(summary, key) == pytest.approx(straight[key], rel=1e-4), key


KERAS_MODEL = """
import keras

def build(input_shape, num_classes, width=64):
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(num_classes),
    ])
"""
FIT = """
import json
import numpy as np
import phalanx
from sklearn.datasets import load_digits

if __name__ == "__main__":
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    from my_nets import build
    fitted = phalanx.fit(
        build, images, digits.target, batch_size=64, epochs=8, validation_split=0.1, workers=2,
        optimizer={"name": "adam", "lr": 0.003}, settings={"deadlines": {"start_s": 200.0}},
    )
    model = build(images.shape[1:], 10)
    fitted.load_into(model)
    right = np.argmax(model(images).numpy(), axis=1) == digits.target
    print(json.dumps({"accuracy": float(right.mean()), "history": fitted.history}))
"""


def test_a_keras_model_is_trained_by_a_call_in_the_shape_of_fit(place: Place) -> None:
    (place.folder / "my_nets.py").write_text(KERAS_MODEL)
    (place.folder / "fit.py").write_text(FIT)
    done = subprocess.run(
        [sys.executable, "fit.py"],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["accuracy"] > 0.97
    assert len(found["history"]["val_accuracy"]) == 8
    assert found["history"]["loss"][-1] < found["history"]["loss"][0]


def test_operators_of_tensorflow_fill_the_same_tables(place: Place) -> None:
    place.write_job(JOB | {"strategy": "allreduce", "epochs": 2, "profile": {"epochs": "2"}})
    summary = place.summary("job.yaml")
    run = RunDir.open(Path(summary["run_dir"]))
    profiles = read_profiles(run)
    assert [one.process for one in profiles] == ["worker-0", "worker-1"]
    for profile in profiles:
        assert profile.engine.startswith("tensorflow 2.")
        [epoch] = profile.epochs
        assert (epoch.epoch, epoch.steps) == (1, NUM_STEPS)
        spans = {one.span for one in epoch.operators}
        assert {"input", "forward", "loss", "backward", "all_reduce", "apply"} <= spans
        assert any("MatMul" in one.name for one in epoch.operators if one.span == "backward")
        assert 0 < sum(one.self_s for one in epoch.operators) < 1.1 * epoch.wall_s
    shown = place.run("profile", summary["run_dir"])
    assert shown.returncode == 0, shown.stderr
    assert "dense" in shown.stdout


def endless(strategy: object) -> dict[str, Any]:
    return JOB | {
        "strategy": strategy,
        "epochs": 1_000_000,
        "checkpoint": {"every_epochs": None, "best": None},
    }


def wait_for_epochs(training: Training, process: str, count: int) -> int:
    """Wait until so many epochs are done; returns how many are by then."""

    def enough() -> int | None:
        found = len(of_kind(training.run, process, Epoch))
        return found if found >= count else None

    return int(wait_until(enough, f"{count} epochs", limit_s=110.0))


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, "worker-1 was killed by SIGKILL"),
        (signal.SIGSTOP, "worker-1 is frozen: no sign of life for"),
    ],
    ids=["killed", "frozen"],
)
def test_a_worker_lost_in_lockstep_is_named_in_time(
    place: Place, number: signal.Signals, sentence: str
) -> None:
    place.write_job(endless("allreduce"))
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        wait_for_epochs(training, "worker-0", 1)
        struck = time.monotonic()
        os.kill(pids[1], number)
        code, errors = training.end()
        failure = of_kind(training.run, "controller", Failure)[0]
        assert code == 4
        assert errors.strip().splitlines()[-1].startswith(f"phalanx: {sentence}")
    assert failure.rank == 1
    assert 0 < failure.mono_s - struck < NOTICED_S
    assert not any(map(is_running, pids))


def test_a_worker_lost_under_a_parameter_server_is_replaced_and_ctrl_c_leaves_nothing(
    place: Place,
) -> None:
    place.write_job(endless(SERVING))
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        wait_for_epochs(training, "controller", 1)
        os.kill(pids[1], signal.SIGKILL)

        def replaced() -> int | None:
            pid = started_pid(training.run, 1)
            return pid if pid != pids[1] else None

        newcomer = int(wait_until(replaced, "the newcomer to join", limit_s=110.0))
        known = len(of_kind(training.run, "worker-1", Step))

        def works_again() -> bool:
            return len(of_kind(training.run, "worker-1", Step)) > known

        wait_until(works_again, "the newcomer to work", limit_s=110.0)
        done = len(of_kind(training.run, "controller", Epoch))
        wait_for_epochs(training, "controller", done + 1)
        losses = [event.train_loss for event in of_kind(training.run, "controller", Epoch)]
        training.process.send_signal(signal.SIGINT)
        code, _ = training.end()
        assert code == 130
    assert losses[-1] < losses[0]
    assert not any(map(is_running, (*pids, newcomer)))
    assert training.run.read_status().state == "interrupted"
