"""The loop of a study, with trials that are small programs instead of runs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from phalanx.records.study import PlannedCell, PlannedRepeats, StudyDir, StudyManifest
from phalanx.study import process as process_module
from phalanx.study import runner
from phalanx.study.messages import RunMoved, TrialOrder
from phalanx.study.process import TrialAssignment, TrialProcess
from phalanx.study.runner import StudyRunner
from phalanx.study.stopping import Planned

# Reads its order, and plays what the name of the run says.
TRIAL = """
import json, signal, sys, time
order = json.loads(sys.stdin.readline())
def tell(**news): print(json.dumps(news), flush=True)
name = order["job"]["name"]
if name.startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not name.startswith("quick"):
    while True:
        tell(type="moved", share=0.25, activity="waiting for work")
        time.sleep(0.02)
tell(type="ended", exit_code=0)
"""


def study(path: Path, *cells: str, limit_s: float) -> StudyDir:
    job = {"name": "job", "model": "mlp", "data": "digits"}
    return StudyDir.create(
        path,
        StudyManifest(
            name="still",
            title="still",
            axes={"cell": list(cells)},
            cells=[PlannedCell(id=cell, settings={"cell": cell}, job=job) for cell in cells],
            metric="train_s",
            repeats=PlannedRepeats(min=1, max=1),
            seeds=[1],
            trial_limit_s=limit_s,
        ),
    )


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-c", TRIAL)
    monkeypatch.setattr(runner, "TrialProcess", functools.partial(TrialProcess, command=command))
    monkeypatch.setattr(runner, "_TICK_S", 0.01)


def test_a_trial_that_hangs_is_ended_with_its_cause_and_the_study_goes_on(tmp_path: Path) -> None:
    made = study(tmp_path / "study", "hanging", "quick", limit_s=3.0)
    outcome = StudyRunner(made, cores=[0]).run()
    hanging, quick = outcome.trials
    assert (hanging.cell, hanging.state) == ("hanging", "failed")
    assert hanging.cause == (
        "the run had not moved for 3 s (trial_limit): 25.0% done, waiting for work"
    )
    assert (quick.cell, quick.state, quick.cause) == ("quick", "finished", None)
    assert [trial.state for trial in made.trials()] == ["failed", "finished"]


def test_a_trial_that_does_not_even_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_END_LIMIT_S", 0.3)
    made = study(tmp_path / "study", "deaf", "quick", limit_s=0.3)
    deaf, quick = StudyRunner(made, cores=[0]).run().trials
    assert deaf.state == "failed"
    assert "trial_limit" in str(deaf.cause)
    assert quick.state == "finished"


class MadeUpTime:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_only_what_changes_counts_as_movement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MadeUpTime()
    monkeypatch.setattr(process_module, "time", clock)
    order = TrialOrder(job={}, runs="", data_root="", cache_root="", cores=[0])
    trial = TrialProcess(TrialAssignment(Planned("cell", 0, 1), {}, order, tmp_path / "log", 0))
    for share, activity, still_s in [
        (0.1, "training", 0.0),
        (0.1, "training", 10.0),
        (0.2, "training", 0.0),
        (0.2, "measuring validation", 0.0),
        (0.2, "measuring validation", 10.0),
        (0.2, "measuring validation", 20.0),
    ]:
        clock.now_s += 10.0
        trial._take(RunMoved(share=share, activity=activity))
        assert trial.still_s == still_s
