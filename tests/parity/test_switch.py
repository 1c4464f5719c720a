"""A switch changes nothing: the same bits before and after, in both directions, and the same run.

The sharpest witnesses are phases without a single step: whatever is wrong in going there or coming
back shows in the parameters at the end, which must be those of a run that never switched.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.schedule import learning_rate
from phalanx.records.events import Epoch, Step, Switched
from phalanx.records.position import read_position
from phalanx.records.rundir import RunDir
from phalanx.spec.loader import job_from_mapping
from support.runs import Place, events_of

NUM_TRAIN, NUM_STEPS, EPOCHS = 1294, 21, 3
JOB: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "schedule": {"name": "milestones", "at": [0.45, 0.8], "factor": 0.1},
    "epochs": EPOCHS,
    "workers": 2,
}
# Batch normalisation and dropout: statistics and random state.
NORMALISED = {"model": {"name": "densenet", "depth": 10, "growth": 4}, "data": {"name": "digits"}}
# State that belongs to whole tensors, and two groups that are cut inside tensors.
FACTORED = {"optimizer": {"name": "torch.optim:Adafactor", "lr": 0.02}}
GROUPS = {
    "optimizer": {
        "name": "torch.optim:NAdam",
        "groups": [{"match": ["*bias"], "args": {"lr": 0.01, "weight_decay": 0.1}}],
    }
}
ADAM = {"optimizer": {"name": "adam", "lr": 0.003}}
LOW_RANK = {
    "name": "allreduce",
    "compression": {"name": "powersgd", "rank": 1, "start_after": 5},
}
SERVED = {"name": "parameter_server", "min_shard_bytes": 1024, "servers": "colocated"}
BSP = SERVED | {"consistency": "bsp"}
APART = SERVED | {"servers": 2}
NOTHING = 1e-10  # epochs; not a single sample


def switching(*phases: tuple[object, dict[str, float]], **settings: Any) -> dict[str, Any]:
    """Begin with allreduce, and go on with others."""
    listed: list[dict[str, Any]] = [{"strategy": "allreduce"}]
    listed += [{"strategy": strategy, **moment} for strategy, moment in phases]
    return {"strategy": {"name": "switch", "phases": listed, **settings}}


def visits(*strategies: object, epoch: float) -> list[tuple[object, dict[str, float]]]:
    """One strategy after another at the same moment, and back to allreduce."""
    all_of_them = [*strategies, "allreduce"]
    return [(one, {"epoch": epoch + n * NOTHING}) for n, one in enumerate(all_of_them)]


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain-adam": ADAM,
    "plain-factored": FACTORED,
    "plain-groups": GROUPS,
    "plain-normalised": NORMALISED,
    "again": switching(("allreduce", {"at": 0.4}), ("allreduce", {"epoch": 2})),
    "again-normalised": NORMALISED
    | switching(("allreduce", {"at": 0.4}), ("allreduce", {"epoch": 2})),
    "plain-low-rank": {"strategy": LOW_RANK},
    # Phases of the same settings: factors and residuals go on.
    "again-low-rank": {
        "strategy": {
            "name": "switch",
            "phases": [{"strategy": LOW_RANK}, {"strategy": LOW_RANK, "at": 0.4}],
        }
    },
    "low-rank-to-servers": {
        "strategy": {
            "name": "switch",
            "phases": [
                {"strategy": LOW_RANK},
                {"strategy": BSP, "at": 0.3},
                {"strategy": {"name": "allreduce", "compression": "int8"}, "at": 0.6},
            ],
        }
    },
    "restarted": switching(
        ("allreduce", {"at": 0.4}), ("allreduce", {"epoch": 2}), handover="restart"
    ),
    "visits": switching(
        *visits(SERVED, epoch=0.6), *visits(APART, epoch=1), *visits(BSP, epoch=1.5),
        *visits(SERVED, APART | {"servers": 1}, BSP, epoch=2), *visits(APART, epoch=2.4),
    ),
    "visits-adam": ADAM
    | switching(*visits(SERVED, epoch=0.6), *visits(APART, BSP, epoch=1.5)),
    "visits-factored": FACTORED
    | switching(*visits(SERVED, epoch=0.6), *visits(APART, BSP, epoch=1.5)),
    "visits-groups": GROUPS
    | switching(*visits(SERVED, epoch=0.6), *visits(APART, BSP, epoch=1.5)),
    # In the middle of an epoch statistics are averaged first, so only its end leaves all bits.
    "visits-normalised": NORMALISED | switching(*visits(SERVED, epoch=1), *visits(APART, epoch=2)),
    "there-and-back": switching(
        (BSP, {"at": 0.3}), ("allreduce", {"epoch": 2}), (BSP | {"servers": 2}, {"at": 0.85})
    ) | {"checkpoint": {"every_steps": 4, "keep": 100}},
    "there-and-back-adam": ADAM | switching((BSP, {"at": 0.3}), ("allreduce", {"at": 0.7})),
    "free": switching(
        (SERVED | {"dispatch": "dynamic"}, {"at": 0.2}), ({"name": "local_sgd"}, {"lr_drop": 1}),
        (APART | {"dispatch": "dynamic"}, {"epoch": 1.8}), ramp_steps=4, momentum="scale",
    ),
}  # fmt: skip


class Runs:
    """Each run is made when it is first asked for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._found: dict[str, dict[str, Any]] = {}

    def summary(self, name: str) -> dict[str, Any]:
        if name not in self._found:
            self.place.write_job(JOB | JOBS[name] | {"name": name}, f"{name}.yaml")
            self._found[name] = self.place.summary(f"{name}.yaml")
        return self._found[name]

    def run(self, name: str) -> RunDir:
        return RunDir.open(Path(self.summary(name)["run_dir"]))

    def parameters(self, name: str) -> torch.Tensor:
        return load_file(newest(self.run(name)))["replica.parameters"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("switch")
    return Runs(Place(folder, folder / "cache"))


def newest(run: RunDir) -> Path:
    return max(run.checkpoints.glob("samples-*.safetensors"))


def steps_of(run: RunDir) -> list[Step]:
    logs = (events_of(run, f"worker-{rank}") for rank in range(2))
    return [event for log in logs for event in log if isinstance(event, Step)]


def assert_each_sample_once(run: RunDir) -> None:
    """By what the workers did, and by what the epochs are said to have been."""
    steps = steps_of(run)
    for epoch in range(EPOCHS):
        assert sum(step.num_samples for step in steps if step.epoch == epoch) == NUM_TRAIN
    logs = [*events_of(run, "controller"), *events_of(run, "worker-0")]
    epochs = sorted((e for e in logs if isinstance(e, Epoch)), key=lambda e: e.epoch)
    assert [epoch.epoch for epoch in epochs] == list(range(EPOCHS))
    assert [epoch.samples for epoch in epochs] == [NUM_TRAIN * (n + 1) for n in range(EPOCHS)]
    for epoch in epochs:
        # Of a whole number of samples, counted once.
        assert 0 <= epoch.train_accuracy <= 1
        counted = epoch.train_accuracy * NUM_TRAIN
        assert counted == pytest.approx(round(counted), abs=1e-6)


@pytest.mark.parametrize(
    ("switched", "plain"),
    [
        pytest.param("again", "plain", marks=pytest.mark.full),
        pytest.param("again-normalised", "plain-normalised", marks=pytest.mark.full),
        pytest.param("again-low-rank", "plain-low-rank", marks=pytest.mark.full),
        pytest.param("restarted", "plain", marks=pytest.mark.full),
        pytest.param("visits", "plain", marks=pytest.mark.full),
        ("visits-adam", "plain-adam"),
        pytest.param("visits-factored", "plain-factored", marks=pytest.mark.full),
        pytest.param("visits-groups", "plain-groups", marks=pytest.mark.full),
        pytest.param("visits-normalised", "plain-normalised", marks=pytest.mark.full),
    ],
)
def test_a_switched_run_ends_with_the_bits_of_one_that_never_did(
    runs: Runs, switched: str, plain: str
) -> None:
    found, wanted = runs.summary(switched), runs.summary(plain)
    assert found["parameters_sha256"] == wanted["parameters_sha256"]
    for key in ("samples", "updates", "epochs", "train_accuracy", "val_loss", "test_loss"):
        assert found[key] == pytest.approx(wanted[key], rel=1e-6), key
    assert len(found["switches"]) == len(JOBS[switched]["strategy"]["phases"]) - 1
    if switched != "restarted":
        assert_each_sample_once(runs.run(switched))


@pytest.mark.parametrize("name", ["visits", "visits-adam"])
def test_the_state_at_the_boundary_is_what_every_phase_begins_with(runs: Runs, name: str) -> None:
    """Parameters, momentum and statistics: each visit writes the state down on the way back."""
    run = runs.run(name)
    switches = [e for e in events_of(run, "controller") if isinstance(e, Switched)]
    moments = {event.samples for event in switches}
    assert {path.name for path in run.checkpoints.glob("switch-*")} == {
        f"switch-{samples:012d}.safetensors" for samples in moments
    }
    for event in switches:
        assert event.carried == [
            "parameters", "optimiser state", "batch-norm statistics", "schedule position",
            "sample position", "random state",
        ]  # fmt: skip
        assert event.pause_s > 0


@pytest.mark.parametrize(
    ("switched", "plain"),
    [
        pytest.param("there-and-back", "plain", marks=pytest.mark.full),
        ("there-and-back-adam", "plain-adam"),
    ],
)
def test_lockstep_servers_in_between_make_no_difference(
    runs: Runs, switched: str, plain: str
) -> None:
    found, wanted = runs.summary(switched), runs.summary(plain)
    assert torch.allclose(runs.parameters(switched), runs.parameters(plain), atol=1e-5, rtol=0)
    for key in ("train_loss", "val_loss", "test_loss"):
        assert found[key] == pytest.approx(wanted[key], abs=1e-5), key
    assert (found["samples"], found["updates"]) == (EPOCHS * NUM_TRAIN, EPOCHS * NUM_STEPS)
    assert_each_sample_once(runs.run(switched))


@pytest.mark.full
def test_what_a_compression_keeps_ends_with_its_phase(runs: Runs) -> None:
    found = runs.summary("low-rank-to-servers")
    assert (found["state"], found["samples"]) == ("finished", EPOCHS * NUM_TRAIN)
    assert found["test_accuracy"] > 0.8
    assert_each_sample_once(runs.run("low-rank-to-servers"))
    state = load_file(newest(runs.run("low-rank-to-servers")))
    assert "strategy.residual" in state
    assert "strategy.factors" not in state


@pytest.mark.parametrize("name", ["plain", "again", "there-and-back"])
def test_the_rate_goes_on_where_it_was(runs: Runs, name: str) -> None:
    """Under lockstep strategies each worker takes part in every update, whoever makes it."""
    job = job_from_mapping(JOB)
    before = [epoch * NUM_TRAIN + step * 64 for epoch in range(EPOCHS) for step in range(NUM_STEPS)]
    wanted = [
        learning_rate(
            job.schedule,
            peak=job.optimizer.lr,
            samples_seen=samples,
            total_samples=NUM_TRAIN * EPOCHS,
            samples_per_epoch=NUM_TRAIN,
        )
        for samples in before
    ]
    assert len(set(wanted)) == 3
    for rank in range(2):
        log = events_of(runs.run(name), f"worker-{rank}")
        assert [event.lr for event in log if isinstance(event, Step)] == pytest.approx(wanted)


def test_any_strategies_follow_one_another(runs: Runs) -> None:
    summary, run = runs.summary("free"), runs.run("free")
    assert (summary["samples"], summary["epochs"]) == (EPOCHS * NUM_TRAIN, EPOCHS)
    assert summary["test_accuracy"] >= 0.7
    assert [(one["before"], one["after"]) for one in summary["switches"]] == [
        ("allreduce", "parameter_server"),
        ("parameter_server", "local_sgd"),
        ("local_sgd", "parameter_server"),
    ]
    assert_each_sample_once(run)
    # Right after the switch the rate climbs from a tenth; then it is the schedule's.
    first, second, third = (one["samples"] for one in summary["switches"])
    controller = [e for e in events_of(run, "controller") if isinstance(e, Switched)]
    begins = [event.mono_s for event in controller]
    served = [step for step in steps_of(run) if begins[0] < step.mono_s < begins[1]]
    assert max(step.lr for step in served) == pytest.approx(0.05)
    # The first of them may be done before the controller has recorded the switch. Until then the
    # rate was constant.
    assert min(step.lr for step in steps_of(run) if step.mono_s < begins[1]) < 0.05 * 0.5
    averaged = [step for step in steps_of(run) if step.mono_s > begins[1]]
    assert min(averaged, key=lambda step: step.mono_s).lr == pytest.approx(0.005)
    assert (first, second, third) == tuple(event.samples for event in controller)


@pytest.mark.parametrize(
    "phase", [0, 1, *(pytest.param(one, marks=pytest.mark.full) for one in (2, 3))]
)
def test_a_run_is_resumed_in_each_of_its_phases(runs: Runs, tmp_path: Path, phase: int) -> None:
    """Every other checkpoint is taken away, as if the run had ended there."""
    copy = shutil.copytree(runs.run("there-and-back").path, tmp_path / "run")
    kept = [
        path
        for path in sorted((copy / "checkpoints").glob("samples-*"))
        if read_position(path).phase == phase
    ]
    at = kept[0]
    for path in (copy / "checkpoints").glob("samples-*"):
        if path.name > at.name:
            path.unlink()
    shutil.rmtree(copy / "servers", ignore_errors=True)
    summary = runs.place.summary("--resume", str(copy))
    assert summary["attempts"] == 2
    assert len(summary["switches"]) == 3 - phase
    assert (summary["samples"], summary["updates"]) == (EPOCHS * NUM_TRAIN, EPOCHS * NUM_STEPS)
    parameters = load_file(newest(RunDir.open(copy)))["replica.parameters"]
    assert torch.allclose(parameters, runs.parameters("plain"), atol=1e-5, rtol=0)
    assert summary["train_loss"] == pytest.approx(runs.summary("plain")["train_loss"], abs=1e-5)


def test_resuming_exactly_at_a_boundary_switches_at_once(runs: Runs, tmp_path: Path) -> None:
    """Of each kind: written by the chief on the way to servers, and on the way back."""
    source = runs.run("there-and-back")
    switches = [e for e in events_of(source, "controller") if isinstance(e, Switched)]
    for number, event in enumerate(switches[:2]):
        copy = shutil.copytree(source.path, tmp_path / str(number))
        name = f"samples-{event.samples:012d}.safetensors"
        for path in (copy / "checkpoints").glob("samples-*"):
            if path.name > name:
                path.unlink()
        assert (copy / "checkpoints" / name).exists()
        summary = runs.place.summary("--resume", str(copy))
        assert summary["samples"] == EPOCHS * NUM_TRAIN
        parameters = load_file(newest(RunDir.open(copy)))["replica.parameters"]
        assert torch.allclose(parameters, runs.parameters("plain"), atol=1e-5, rtol=0)
