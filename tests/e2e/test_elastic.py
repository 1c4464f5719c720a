"""Synchronous runs that lose workers and go on: real processes, struck at set moments."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.records.events import Decision, Epoch, Grouped
from phalanx.records.rundir import RunDir
from phalanx.spec.loader import job_from_mapping
from support.faults import Deed, FaultPlan, freeze, kill
from support.replay import Replay, ledger_of
from support.runs import LIMIT_S, Place, events_of
from support.victims import SLOW_MODEL
from support.waiting import wait_until

NUM_TRAIN, EPOCHS = 1294, 3
JOB: dict[str, Any] = {
    "name": "elastic",
    "model": {"name": "mlp", "hidden": [64, 32]},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "epochs": EPOCHS,
    "workers": 3,
    "threads": 1,
    "strategy": {"name": "allreduce", "bucket_bytes": 4096},
    "elastic": {"min": 1},
    "checkpoint": {"every_epochs": 1, "every_steps": 7},
    "observe": {"interval_s": None},
}
# Until a killed or frozen worker counts as lost, and the survivors have their next group.
NOTICED_S = 10.0


def train(place: Place, plan: FaultPlan, job: dict[str, Any] = JOB) -> tuple[RunDir, str]:
    """Train to the end; returns the run and what the screen said."""
    place.write_job(job)
    place.environment |= plan.settings
    done = place.run("train", "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(next(place.runs.iterdir())), done.stdout + done.stderr


def check_exact(run: RunDir, place: Place, job: dict[str, Any] = JOB) -> list[Grouped]:
    """Compare the run with the same membership by plan, and its samples with those of an epoch."""
    summary = run.read_summary()
    assert summary is not None
    ledger = ledger_of(run)
    replay = Replay(job_from_mapping(job), place.data, place.cache)
    assert replay.run(ledger) == summary.parameters_sha256
    assert [sorted(seen) for seen in replay.seen] == [list(range(NUM_TRAIN))] * EPOCHS
    epochs = [event for event in events_of(run, "controller") if isinstance(event, Epoch)]
    assert [one.epoch for one in epochs] == list(range(EPOCHS))
    assert [one.samples for one in epochs] == [NUM_TRAIN * n for n in range(1, EPOCHS + 1)]
    assert (summary.epochs, summary.samples) == (EPOCHS, EPOCHS * NUM_TRAIN)
    return ledger


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victim", "moment", "occurrence", "deed"),
    [
        ("worker-1", "step begun", 30, kill()),
        ("worker-2", "bucket sent", 61, kill()),
        ("worker-0", "step applied", 25, kill()),
        ("worker-1", "unit committed", 26, kill()),
        ("worker-0", "epoch ending", 2, kill()),
        ("worker-0", "checkpoint begun", 3, kill()),
        ("worker-2", "checkpoint begun", 3, kill()),
        ("worker-1", "group formed", 1, kill()),
        ("worker-1", "bucket sent", 60, freeze()),
        ("worker-0", "step begun", 20, freeze(15.0)),
        ("worker-0", "step begun", 9, kill("worker-1", "worker-2")),
    ],
)
def test_survivors_of_a_loss_go_on_exactly_where_they_were(
    place: Place, victim: str, moment: str, occurrence: int, deed: Deed
) -> None:
    with FaultPlan(place.folder) as plan:
        plan.fail_at(victim, moment, deed, occurrence=occurrence)
        run, screen = train(place, plan)
        (fired,) = plan.fired()
    lost = set(deed.victims or (victim,))
    ledger = check_exact(run, place)
    groups = [group for group in ledger if not lost & set(group.members)]
    assert groups, "survivors trained without those who were lost"
    assert groups[0].mono_s - fired.mono_s < NOTICED_S
    told = [one for one in events_of(run, "controller") if isinstance(one, Decision)]
    assert told[0].what.startswith("replace "), "the cause comes first"
    for name in lost:
        assert f"{name} was killed by SIGKILL" in screen or f"{name} is frozen" in screen
    assert f"go{'' if len(groups[0].members) > 1 else 'es'} on: without" in screen


def test_a_successor_joins_the_survivors_with_the_state_of_the_run(place: Place) -> None:
    job = JOB | {"model": "my_nets:build", "python_path": [str(place.folder)]}
    (place.folder / "my_nets.py").write_text(SLOW_MODEL)
    (place.folder / "slow").touch()
    place.write_job(job)
    with FaultPlan(place.folder) as plan:
        plan.fail_at("worker-0", "step begun", kill(), occurrence=5)
        place.environment |= plan.settings
        with place.start("job.yaml") as training:
            training.worker_pids(3)
            run = training.run
            wait_until(lambda: len(whole_groups(run)) > 1, "the successor to join", limit_s=LIMIT_S)
            (place.folder / "slow").unlink()
            screen, errors = training.process.communicate(timeout=LIMIT_S)
            assert training.process.returncode == 0, errors
    ledger = check_exact(run, place, job)
    told = [" ".join(one.members) for one in ledger]
    assert told[:2] == ["worker-0 worker-1 worker-2", "worker-1 worker-2"]
    assert told[-1] == told[0]
    lines = ["worker-0 was killed", "2 workers go on: without", "3 workers go on: worker-0 joined"]
    places = [(screen + errors).find(line) for line in lines]
    assert -1 < places[0] < places[1] < places[2]


def whole_groups(run: RunDir) -> list[Grouped]:
    """The groups in which all workers were given samples."""
    return [one for one in ledger_of(run) if len(one.members) == 3 and not one.waiting]
