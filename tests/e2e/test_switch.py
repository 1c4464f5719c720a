"""Switches that a run makes by itself, as a user starts it: when it pays, and when it must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import pytest

from phalanx.records.events import Considered, Decision, Event, Resumed, Step, Switched
from phalanx.records.rundir import RunDir
from support.apart import ApartPlace
from support.runs import LIMIT_S, Place, events_of
from support.waiting import wait_until

Kind = TypeVar("Kind", bound=Event)
NUM_TRAIN = 1294
JOB: dict[str, Any] = {
    "name": "switching",
    "model": {"name": "mlp", "hidden": [64]},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "workers": 2,
    "evaluate": "end",
}
# Thresholds that are always met but for those that a test is about.
OPEN = {"rel_lr": 1.0, "noise": 0.0, "gain": 1.0, "amortise": 0.0, "every": 5, "windows": 2}
# Learns as it should, but answers nonsense while a server is in its process, until it has left.
POISONED = """
import threading
from torch import nn

class Net(nn.Sequential):
    served = cured = False

    def forward(self, inputs):
        serving = any(thread.name == "server" for thread in threading.enumerate())
        self.cured |= self.served and not serving
        self.served |= serving
        outputs = super().forward(inputs)
        return outputs * -20 if serving and not self.cured and self.training else outputs

def build(input_shape, num_classes):
    return Net(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes))
"""


def train(place: Place, **fields: Any) -> tuple[dict[str, Any], RunDir]:
    job = JOB | fields
    place.write_job(job)
    summary = place.summary("job.yaml")
    assert (summary["samples"], summary["epochs"]) == (NUM_TRAIN * job["epochs"], job["epochs"])
    assert 0 <= summary["train_accuracy"] <= 1
    return summary, RunDir.open(Path(summary["run_dir"]))


def events(run: RunDir, kind: type[Kind], process: str = "controller") -> list[Kind]:
    return [event for event in events_of(run, process) if isinstance(event, kind)]


def decided(run: RunDir) -> list[str]:
    return [event.what for event in events(run, Decision)]


def test_the_moment_comes_with_the_decay_and_its_reasons_are_recorded(place: Place) -> None:
    summary, run = train(
        place,
        epochs=16,
        schedule={"name": "milestones", "at": [0.5], "factor": 0.1},
        strategy={"name": "switch", "at": "auto", "auto": OPEN | {"rel_lr": 0.2, "canary": None}},
        inject=[{"rank": 1, "slow": 4}],
    )
    half = 8 * NUM_TRAIN
    [switch] = summary["switches"]
    assert (switch["before"], switch["after"]) == ("allreduce", "parameter_server")
    assert half < switch["samples"] <= 12 * NUM_TRAIN
    assert switch["cause"].startswith("learning rate at 10% of its peak, gradient noise scale ")
    considered = events(run, Considered)
    early = [one for one in considered if one.samples < half]
    assert len(early) >= 10
    assert all("the learning rate is above 20% of its peak" in one.closed for one in early)
    assert considered[-1].closed == []
    assert considered[-1].gain > 1
    # Decided at a window, done within the next.
    assert 0 <= switch["samples"] - considered[-1].samples <= 2 * 5 * 64
    assert decided(run) == ["switch to the next phase"]
    assert [event.cause for event in events(run, Switched)] == [switch["cause"]]

    shown = place.run("runs", "show", "last")
    assert "switched" in shown.stdout
    assert f"after {switch['samples']:,} samples" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("kind", [Place, ApartPlace])
def test_a_bad_switch_is_undone_from_the_snapshot(
    kind: type[Place], tmp_path: Path, cache: Path
) -> None:
    place = kind(tmp_path, cache)
    (place.folder / "nets.py").write_text(POISONED)
    summary, run = train(
        place,
        epochs=20,
        model="nets:build",
        strategy={
            "name": "switch",
            "at": "auto",
            "ramp_steps": 0,
            "auto": OPEN | {"after": 0.2, "canary": 1.5, "canary_after": 0.05},
        },
    )
    there, back, again = events(run, Switched)
    assert [(one.before, one.after) for one in (there, back, again)] == [
        ("allreduce", "parameter_server"),
        ("parameter_server", "allreduce"),
        ("allreduce", "parameter_server"),
    ]
    # Back to exactly where it had left, with the parameters of then, and on from there.
    assert back.samples == there.samples < again.samples
    assert back.cause.startswith("the training loss is ")
    assert decided(run)[:3] == [
        "switch to the next phase", "undo the switch", "switch to the next phase",
    ]  # fmt: skip
    [resumed] = events(run, Resumed, "worker-0")
    assert Path(resumed.path).name == f"switch-{there.samples:012d}.safetensors"
    assert resumed.samples == there.samples
    assert summary["test_accuracy"] > 0.85
    # What was learnt in between is nowhere: no checkpoint is of a time that was given up.
    saved = [int(path.stem.split("-")[1]) for path in run.checkpoints.glob("samples-*")]
    assert max(saved) == 20 * NUM_TRAIN


SLOW_JOB: dict[str, Any] = {
    # Wide layers: the time of a step goes by its samples.
    "model": {"name": "mlp", "hidden": [1024, 512]},
    "batch": {"global": 256},
    # Long enough for windows in which nothing else keeps the cores busy, before and after.
    "epochs": 90,
    "inject": [{"rank": 1, "slow": 4, "begin": 0.1, "end": 0.4}],
}


def straggling(**settings: Any) -> dict[str, Any]:
    phases = [{"strategy": "allreduce"}, {"strategy": "allreduce", "at": 0.99}]
    straggler = {"slow": 2.0, "window_s": 0.3, "windows": 3} | settings
    return {"name": "switch", "phases": phases, "straggler": straggler}


@pytest.mark.alone
@pytest.mark.full
def test_a_slow_machine_gets_less_to_do_until_it_recovers(place: Place) -> None:
    summary, run = train(place, **SLOW_JOB, strategy=straggling(loosen_above=None, max_changes=2))
    assert decided(run) == ["change the shares of the batch"] * 2
    slower, even, _ = events(run, Switched)
    assert slower.cause.startswith("worker-1 takes ")
    assert even.cause.startswith("recovered: ")
    total = SLOW_JOB["epochs"] * NUM_TRAIN
    assert 0.1 * total < slower.samples < 0.4 * total < even.samples
    assert {one["before"] for one in summary["switches"]} == {"allreduce"}
    steps = {rank: events(run, Step, f"worker-{rank}") for rank in range(2)}
    done = [sum(step.num_samples for step in steps[rank]) for rank in range(2)]
    assert sum(done) == total
    assert done[1] < done[0]


@pytest.mark.alone
@pytest.mark.full
def test_a_very_slow_machine_is_answered_by_a_looser_strategy_until_it_recovers(
    place: Place,
) -> None:
    slow = SLOW_JOB["inject"][0] | {"slow": 8}
    summary, run = train(
        place, **SLOW_JOB | {"inject": [slow]}, strategy=straggling(loosen_above=2.5, max_changes=4)
    )
    found = decided(run)
    assert found[:2] == ["change the shares of the batch", "go to a looser strategy"]
    assert found[2:] == ["go back to the strategy of the phase"]
    _, loose, back, last = events(run, Switched)
    assert (loose.phase, loose.after) == (-1, "parameter_server")
    assert (back.phase, back.after) == (0, "allreduce")
    assert (last.phase, last.cause) == (1, "99% of the samples")
    assert loose.samples < 0.4 * SLOW_JOB["epochs"] * NUM_TRAIN < back.samples
    assert summary["test_accuracy"] > 0.85


@pytest.mark.parametrize("evaluate_in", ["servers", "lockstep"])
def test_a_run_may_stop_early_in_any_phase(place: Place, evaluate_in: str) -> None:
    served = {"name": "parameter_server", "servers": "colocated", "min_shard_bytes": 1024}
    first, second = (("allreduce", served), (served, "allreduce"))[evaluate_in == "lockstep"]
    place.write_job(
        JOB
        | {
            "epochs": 6,
            "evaluate": "epoch",
            "early_stop": {"monitor": "val_loss", "patience": 1, "min_delta": 100.0},
            "strategy": {
                "name": "switch",
                "phases": [
                    {"strategy": first},
                    {"strategy": second, "epoch": 1},
                    {"strategy": first, "epoch": 4},
                ],
            },
        }
    )
    summary = place.summary("job.yaml")
    assert summary["stopped_early"]
    assert (summary["epochs"], summary["samples"]) == (2, 2 * NUM_TRAIN)
    assert len(summary["switches"]) == 1
    assert summary["test_loss"] is not None


def test_a_user_switches_and_stops_a_run_under_way(place: Place) -> None:
    place.write_job(JOB | {"epochs": 100_000, "strategy": "switch", "evaluate": "never"})
    with place.start("job.yaml", "--quiet") as training:
        training.worker_pids()
        run = training.run
        assert place.run("switch", "last").returncode == 0
        [switch] = wait_until(lambda: events(run, Switched), "a switch", limit_s=LIMIT_S)
        assert (switch.after, switch.cause) == ("parameter_server", "a user asked for it")
        assert place.run("switch", "last").returncode == 0
        wait_until(lambda: "stay in this phase" in decided(run), "an answer", limit_s=LIMIT_S)
        assert place.run("stop", "last").returncode == 0
        code, errors = training.end()
    assert code == 130
    assert "stopped on request; continue with" in errors
    for command in ("stop", "switch"):
        refused = place.run(command, "last")
        assert refused.returncode == 2
        assert "is interrupted; only a running one can" in refused.stderr


def test_a_run_that_switches_cannot_grow(place: Place) -> None:
    place.write_job(JOB | {"epochs": 100_000, "strategy": "switch", "evaluate": "never"})
    with place.start("job.yaml", "--quiet") as training:
        training.worker_pids()
        refused = place.run("scale", "last", "--workers", "3")
        assert refused.returncode == 2
        assert "a run that switches keeps its workers" in refused.stderr
        assert json.loads((training.run.path / "status.json").read_text())["state"] == "running"
        training.process.terminate()
        training.end()
