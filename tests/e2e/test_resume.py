"""A run whose controller was killed with -9 comes to the same end as one that was not."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from phalanx.records.events import AnyEvent, AttemptTotals, Resumed, Started, Step
from phalanx.records.position import Position, read_position
from phalanx.records.rundir import RunDir
from support.runs import LIMIT_S, Place, events_of, is_running
from support.waiting import wait_until

NUM_TRAIN = 1294
DECIDED = (
    "parameters_sha256",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "test_loss",
    "test_accuracy",
    "samples",
    "updates",
)
# Batch-norm statistics, moments, residuals and factors have to come back; a checkpoint comes every
# seven steps of an epoch of 21, and the run is long enough to be caught in the middle.
GROUP_JOB: dict[str, Any] = {
    "name": "group",
    "model": {"name": "resnet", "n": 1},
    "data": {"name": "digits", "augment": ["pad-crop"]},
    "batch": {"global": 64},
    "optimizer": {"name": "adam", "lr": 0.002, "l2": 1e-4},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "epochs": 12,
    "workers": 2,
    "strategy": {
        "name": "allreduce",
        "compression": {"name": "powersgd", "rank": 1, "start_after": 3},
    },
    "checkpoint": {"every_steps": 7, "keep": 3},
    "early_stop": {"monitor": "val_accuracy", "patience": 50},
}
# The user's own network, found in the current directory. While the file `fault` is there, its 40th
# step (of 21 in an epoch) kills the controller: after the checkpoint of step 35, before 42.
USER_MODEL = """
import json, os, signal
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    calls = 0

    def forward(self, inputs):
        if self.training:
            self.calls += 1
            if self.calls == 40 and Path("fault").exists():
                Path("fault").unlink()
                newest = max(Path("runs").glob("*/status.json"), key=os.path.getmtime)
                os.kill(json.loads(newest.read_text())["pid"], signal.SIGKILL)
                signal.pause()
        return super().forward(inputs)

def build(input_shape, num_classes, width):
    height, breadth, channels = input_shape
    return Net(
        nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(width * (height - 2) * (breadth - 2), num_classes),
    )
"""
SINGLE_JOB: dict[str, Any] = {
    "name": "alone",
    "model": {"name": "my_nets:build", "args": {"width": 8}},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "adam"},
    "epochs": 3,
    "strategy": "single",
    "checkpoint": {"every_steps": 7},
}


class Killed:
    """A run whose controller was killed with -9, and its state at that moment."""

    def __init__(self, run: RunDir, pids: list[int]) -> None:
        self.run = run
        self.pids = pids


@pytest.fixture(scope="module")
def group_place(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Place:
    place = Place(tmp_path_factory.mktemp("group"), cache)
    place.write_job(GROUP_JOB)
    return place


@pytest.fixture(scope="module")
def killed(group_place: Place) -> Killed:
    """Killed from outside, at whatever moment after the first checkpoint."""
    with group_place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        training.wait_for_checkpoint()
        training.process.kill()
        training.end()
        wait_until(lambda: not any(map(is_running, pids)), "the workers to die", limit_s=LIMIT_S)
        return Killed(training.run, pids)


def copy_of(killed: Killed, name: str) -> Path:
    """The run at the moment it was killed, elsewhere: a copied directory is a whole run."""
    return Path(shutil.copytree(killed.run.path, killed.run.path.parent.parent / name / "run"))


def last_attempt(run: RunDir, rank: int) -> list[AnyEvent]:
    events = events_of(run, f"worker-{rank}")
    starts = [index for index, event in enumerate(events) if isinstance(event, Started)]
    return events[starts[-1] :]


def newest_position(run: RunDir) -> Position:
    return read_position(max(run.checkpoints.glob("samples-*.safetensors")))


def resumed_at(run: RunDir) -> int:
    [resumed] = [event for event in last_attempt(run, 0) if isinstance(event, Resumed)]
    return resumed.samples


def test_a_killed_controller_takes_its_workers_along_and_the_run_counts_as_lost(
    killed: Killed,
) -> None:
    assert not any(map(is_running, killed.pids))
    status = killed.run.read_status()
    assert status.state == "lost", "the run had ended before it could be killed"
    assert killed.run.read_summary() is None


def test_a_group_resumes_to_the_same_bits(group_place: Place, killed: Killed) -> None:
    run = copy_of(killed, "same")
    resumed = group_place.summary("--resume", str(run))
    unbroken = group_place.summary("job.yaml")
    assert {key: resumed[key] for key in DECIDED} == {key: unbroken[key] for key in DECIDED}
    assert (resumed["attempts"], unbroken["attempts"]) == (2, 1)
    assert resumed["samples"] == GROUP_JOB["epochs"] * NUM_TRAIN
    assert 0 < resumed_at(RunDir(run)) < resumed["samples"]
    # Elapsed time and bytes are those of both attempts, although the first could not report.
    totals = {
        event.attempt: event
        for event in events_of(RunDir(run), "controller")
        if isinstance(event, AttemptTotals)
    }
    assert sorted(totals) == [1, 2]
    assert all(one.elapsed_s > 0 for one in totals.values())
    assert resumed["elapsed_s"] == pytest.approx(sum(one.elapsed_s for one in totals.values()))
    assert resumed["bytes_sent"] == sum(one.times.sent_bytes for one in totals.values())
    assert resumed["elapsed_s"] > resumed["train_s"]


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_goes_on_by_samples_seen(
    group_place: Place, killed: Killed, workers: int
) -> None:
    run = RunDir(copy_of(killed, f"with-{workers}"))
    epochs = newest_position(run).epoch + 3
    options = ["--workers", str(workers), "--epochs", str(epochs)]
    summary = group_place.summary("--resume", str(run.path), *options)
    assert (summary["workers"], summary["samples"]) == (workers, epochs * NUM_TRAIN)
    begun = resumed_at(run)
    steps = [
        event
        for rank in range(workers)
        for event in last_attempt(run, rank)
        if isinstance(event, Step)
    ]
    assert sum(step.num_samples for step in steps) == epochs * NUM_TRAIN - begun
    # The epoch that was broken off gets what it lacked, each later one all of its samples.
    for epoch in range(begun // NUM_TRAIN, epochs):
        before = max(0, begun - epoch * NUM_TRAIN)
        seen = sum(step.num_samples for step in steps if step.epoch == epoch)
        assert before + seen == NUM_TRAIN


def test_a_damaged_newest_checkpoint_costs_only_the_work_since_the_one_before(
    group_place: Place, killed: Killed
) -> None:
    run = RunDir(copy_of(killed, "damaged"))
    readable = newest_position(run)
    whole = max(run.checkpoints.glob("samples-*.safetensors"))
    damaged = whole.with_name("samples-999999999999.safetensors")
    damaged.write_bytes(whole.read_bytes()[:1000])
    epochs = readable.epoch + 1
    summary = group_place.summary("--resume", str(run.path), "--epochs", str(epochs))
    assert resumed_at(run) == readable.samples
    assert summary["samples"] == epochs * NUM_TRAIN
    assert not damaged.exists()


def test_a_single_worker_resumes_to_the_same_bits_from_the_middle_of_an_epoch(
    place: Place,
) -> None:
    (place.folder / "my_nets.py").write_text(USER_MODEL)
    place.write_job(SINGLE_JOB)
    unbroken = place.summary("job.yaml", "--set", "name=unbroken")
    assert unbroken["model"] == "my_nets:build"

    (place.folder / "fault").touch()
    broken = place.run("train", "job.yaml", "--quiet")
    assert broken.returncode == -signal.SIGKILL
    assert not (place.folder / "fault").exists(), "the fault was not injected"

    resumed = place.summary("--resume", "alone")
    assert {key: resumed[key] for key in DECIDED} == {key: unbroken[key] for key in DECIDED}
    # Killed in step 40 of 21 in an epoch: the work since step 35 is lost and done again.
    assert resumed_at(RunDir(Path(resumed["run_dir"]))) == NUM_TRAIN + 14 * 64


def test_a_run_that_goes_on_cannot_be_resumed_and_a_finished_one_stays_as_it_is(
    place: Place,
) -> None:
    job = GROUP_JOB | {"model": {"name": "mlp", "hidden": [8]}, "epochs": 2, "workers": 1}
    place.write_job(job)
    first = place.summary("job.yaml")

    def files() -> dict[Path, bytes]:
        paths = Path(first["run_dir"]).rglob("*")
        return {path: path.read_bytes() for path in paths if path.is_file()}

    before = files()
    again = place.run("train", "--resume", "last", "--json")
    assert json.loads(again.stdout) == first
    assert "has finished its 2 epochs; nothing was changed" in again.stderr
    assert files() == before
    with place.start("job.yaml", "--epochs", "1000000", "--set", "name=other") as training:
        wait_until(
            lambda: len(list(place.runs.glob("other-*/events/worker-0.jsonl"))), "the other run"
        )
        refused = place.run("train", "--resume", "other")
        assert refused.returncode == 6
        assert f"is still running: process {training.process.pid} on" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        training.process.send_signal(signal.SIGINT)
        training.end()
