"""Whatever is killed at whichever moment of a switch: the run goes on, or ends and is taken up.

Until all workers have said where they stand, a lockstep phase is left as it is lived in: together
or not at all. From then on the rules of servers hold, until all workers hold what the servers had.
Strategies are lockstep ones, so that the undisturbed run says what must come out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from phalanx.records.events import Decision, Failure, ServerRestored, Switched, Warned
from phalanx.records.rundir import RunDir
from support.apart import ApartPlace
from support.faults import Deed, FaultPlan, clock_jump, duplicate, kill
from support.runs import Place, events_of

NUM_TRAIN, NUM_STEPS, EPOCHS = 1294, 21, 2
COLOCATED = {
    "name": "parameter_server",
    "consistency": "bsp",
    "servers": "colocated",
    "min_shard_bytes": 1024,
}
APART = COLOCATED | {"servers": 2}
WORKERS = ["worker-0", "worker-1"]
HELPERS = [
    ("server-1", "making server"),
    ("server-0", "flushing"),
    ("evaluator-0", "meeting servers"),
]


def job(servers: dict[str, Any] = COLOCATED, *, back: float = 0.8) -> dict[str, Any]:
    return {
        "name": "struck",
        "model": {"name": "mlp", "hidden": [32]},
        "data": "digits",
        "batch": {"global": 64},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "epochs": EPOCHS,
        "workers": 2,
        "strategy": {
            "name": "switch",
            "phases": [
                {"strategy": "allreduce"},
                {"strategy": servers, "epoch": 0.4},
                {"strategy": "allreduce", "epoch": back},
            ],
        },
    }


class Stage:
    """Where runs are struck."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._faults = FaultPlan(place.folder)
        place.environment |= self._faults.settings

    def plan(self, process: str, moment: str, *victims: str) -> None:
        self.plan_deed(process, moment, kill(*victims))

    def plan_deed(self, process: str, moment: str, deed: Deed) -> None:
        self._faults.fail_at(process, moment, deed)

    @property
    def num_struck(self) -> int:
        return len(self._faults.fired())

    @property
    def has_struck(self) -> bool:
        return bool(self._faults.fired())

    def train(self, struck: dict[str, Any]) -> RunDir | str:
        """Train to the end; returns the run directory, or what was on screen if it failed."""
        self.place.write_job(struck)
        done = self.place.run("train", "job.yaml", "--json")
        assert self.has_struck, done.stderr
        if done.returncode == 0:
            return RunDir.open(Path(json.loads(done.stdout)["run_dir"]))
        return done.stderr or f"ended by {done.returncode}"

    def resume(self) -> dict[str, Any]:
        return self.place.summary("--resume", "last")

    @property
    def run(self) -> RunDir:
        return RunDir.open(next(self.place.runs.glob("struck-*")))


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> Stage:
    """In one run directory for all processes, or with one for each."""
    kind: type[Place] = getattr(request, "param", Place)
    return Stage(kind(tmp_path, cache))


def struck(*there: tuple[str, str], apart: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    """Processes and moments, for runs in one directory and for runs without a common one."""
    # The second worker, and processes without a common directory, go the same ways once more.
    cases = [
        pytest.param(Place, *one, marks=[pytest.mark.full] if one[0] == "worker-1" else [])
        for one in there
    ] + [pytest.param(ApartPlace, *one, marks=pytest.mark.full) for one in apart]
    return pytest.mark.parametrize(("stage", "process", "moment"), cases, indirect=["stage"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Any]:
    """What must come out."""
    stage = Stage(Place(tmp_path_factory.mktemp("undisturbed"), cache))
    stage.place.write_job(job())
    summary = stage.place.summary("job.yaml")
    assert not stage.has_struck
    assert len(summary["switches"]) == 2
    return summary | {"parameters_of": parameters_of(Path(summary["run_dir"]))}


def parameters_of(run: Path) -> torch.Tensor:
    newest = max((run / "checkpoints").glob("samples-*.safetensors"))
    return load_file(newest)["replica.parameters"]


def assert_complete(summary: dict[str, Any]) -> None:
    assert summary["state"] == "finished"
    assert (summary["epochs"], summary["samples"]) == (EPOCHS, EPOCHS * NUM_TRAIN)
    counted = summary["train_accuracy"] * NUM_TRAIN
    assert counted == pytest.approx(round(counted), abs=1e-6)


def assert_nothing_is_lost(summary: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    assert_complete(summary)
    found = parameters_of(Path(summary["run_dir"]))
    assert torch.allclose(found, undisturbed["parameters_of"], atol=1e-5, rtol=0)
    for key in ("updates", "train_accuracy", "test_accuracy"):
        assert summary[key] == undisturbed[key], key
    assert summary["train_loss"] == pytest.approx(undisturbed["train_loss"], abs=1e-5)


@struck(
    *product(WORKERS, ["leaving lockstep", "entering lockstep", "putting together"]),
    apart=[("worker-0", "putting together")],
)
def test_under_lockstep_rules_the_run_ends_with_the_cause_and_is_taken_up(
    stage: Stage, undisturbed: dict[str, Any], process: str, moment: str
) -> None:
    stage.plan(process, moment)
    errors = stage.train(job())
    assert isinstance(errors, str)
    assert f"{process} was killed by SIGKILL" in errors
    assert stage.run.read_status().state == "failed"
    summary = stage.resume()
    assert summary["attempts"] == 2
    assert_nothing_is_lost(summary, undisturbed)


@struck(
    *product(WORKERS, ["entering servers", "making server", "Resting"]),
    apart=[("worker-0", "Resting"), ("worker-1", "making server")],
)
def test_a_worker_lost_on_the_way_to_servers_is_replaced_and_nothing_is_lost(
    stage: Stage, process: str, moment: str
) -> None:
    """Not even momentum: it is in the chief's snapshot, or in what another worker rescued.

    Others do its batches meanwhile, so the run is not the undisturbed one.
    """
    stage.plan(process, moment)
    run = stage.train(job())
    assert isinstance(run, RunDir), run
    log = events_of(run, "controller")
    assert f"replace {process}" in [event.what for event in log if isinstance(event, Decision)]
    assert [event.samples for event in log if isinstance(event, Switched)] == [576, 1088]
    [restored] = [event for event in log if isinstance(event, ServerRestored)]
    # Nine updates were made before the switch.
    assert (restored.version, restored.lost_updates, restored.optimizer_version) == (9, 0, 9)
    summary = read_summary(run)
    assert_complete(summary)
    assert summary["serving"]["updates_lost"] == 0
    assert summary["test_accuracy"] > 0.6


@struck(
    *product(WORKERS, ["flushing", "handing over"]),
    apart=[("worker-0", "handing over"), ("worker-1", "flushing")],
)
def test_a_worker_lost_while_handing_over_is_waited_for(
    stage: Stage, process: str, moment: str
) -> None:
    """Its parameters come from another worker, its momentum from the state at the switch."""
    stage.plan(process, moment)
    run = stage.train(job())
    assert isinstance(run, RunDir), run
    log = events_of(run, "controller")
    [restored] = [event for event in log if isinstance(event, ServerRestored)]
    # Within the one update that only the lost server may have had.
    assert restored.lost_updates <= 1
    # Nine updates were made before the switch: momentum is that of the state written there.
    assert restored.optimizer_version == 9
    summary = read_summary(run)
    assert_complete(summary)
    assert len(summary["switches"]) == 2
    assert summary["test_accuracy"] > 0.6


@struck(*HELPERS, apart=HELPERS)
def test_servers_of_their_own_and_the_evaluator_are_replaced(
    stage: Stage, undisturbed: dict[str, Any], moment: str, process: str
) -> None:
    stage.plan(process, moment)
    run = stage.train(job(APART))
    assert isinstance(run, RunDir), run
    log = events_of(run, "controller")
    assert next(e.cause for e in log if isinstance(e, Failure)).startswith(f"{process} was killed")
    if moment == "flushing":
        assert_complete(read_summary(run))
    else:
        assert_nothing_is_lost(read_summary(run), undisturbed)


def test_the_evaluator_is_lost_while_it_saves_the_boundary(
    stage: Stage, undisturbed: dict[str, Any]
) -> None:
    stage.plan("evaluator-0", "saving")
    run = stage.train(job(back=1.0))
    assert isinstance(run, RunDir), run
    summary = read_summary(run)
    assert_complete(summary)
    assert len(summary["switches"]) == 2
    log = events_of(run, "controller")
    saved = (run.checkpoints / f"samples-{NUM_TRAIN:012d}.safetensors").exists()
    # It was still writing when lockstep went on: said so, unless its successor was asked again.
    assert saved or any(isinstance(event, Warned) for event in log)
    assert summary["train_loss"] == pytest.approx(undisturbed["train_loss"], abs=1e-5)


@pytest.mark.parametrize(
    "moment",
    [
        "leaving lockstep",
        pytest.param("entering servers", marks=pytest.mark.full),
        pytest.param("Resting", marks=pytest.mark.full),
        "handing over",
        pytest.param("entering lockstep", marks=pytest.mark.full),
    ],
)
def test_the_controller_is_killed_and_the_run_is_taken_up(
    stage: Stage, undisturbed: dict[str, Any], moment: str
) -> None:
    stage.plan("worker-1", moment, "controller")
    errors = stage.train(job())
    assert isinstance(errors, str)
    assert stage.run.read_status().state == "lost"
    assert_nothing_is_lost(stage.resume(), undisturbed)


def read_summary(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "summary.json").read_text())
    return found | {"run_dir": str(run.path)}


@pytest.mark.full
@pytest.mark.parametrize(
    "deeds",
    [
        [duplicate("control"), duplicate("bulk")],
        [clock_jump(86400.0), clock_jump(-86400.0)],
    ],
    ids=["doubled messages", "clocks that jump"],
)
def test_what_costs_no_process_changes_not_a_bit(
    stage: Stage, undisturbed: dict[str, Any], deeds: list[Deed]
) -> None:
    moments = [("worker-0", "Awaiting"), ("worker-1", "Pushing"), ("worker-0", "handing over")]
    for (process, moment), deed in zip(moments, deeds * 2, strict=False):
        stage.plan_deed(process, moment, deed)
    found = stage.train(job())
    assert isinstance(found, RunDir), found
    assert stage.num_struck == len(moments)
    summary = found.read_summary()
    assert summary is not None
    assert summary.parameters_sha256 == undisturbed["parameters_sha256"]
    assert (summary.samples, summary.epochs) == (EPOCHS * NUM_TRAIN, EPOCHS)
    assert not [one for one in events_of(found, "controller") if isinstance(one, Failure)]
    assert 0 < summary.elapsed_s < 3600
