"""The loop of a study, with trials that are small programs instead of runs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from phalanx.errors import LaunchError, SpecError
from phalanx.records.study import (
    PlannedCell,
    PlannedPool,
    PlannedRepeats,
    StudyDir,
    StudyManifest,
    Trial,
    on_other_machines,
)
from phalanx.spec.machine import MachineSpec
from phalanx.study import process as process_module
from phalanx.study import runner
from phalanx.study.messages import RunMoved, TrialOrder
from phalanx.study.places import TrialPlace, divide_machines
from phalanx.study.process import TrialAssignment, TrialProcess
from phalanx.study.runner import StudyRunner
from phalanx.study.stopping import Planned

PLACE = TrialPlace(cores=(0,))
# Reads its order, and plays what the name of the run says.
TRIAL = """
import json, os, signal, sys, time
order = json.loads(sys.stdin.readline())
def tell(**news): print(json.dumps(news), flush=True)
name = order["job"]["name"]
if name.startswith("without"):
    # Fails while machine b is among its own; `without-all` loses all, `without-late` goes on.
    lost = [one for one in order["machines"] if one == "b" or name.startswith("without-all")]
    os.mkdir(os.path.join(order["runs"], run := f"{name}-on-{len(order['machines'])}"))
    tell(type="begun", run=run)
    code = 3 if lost and not name.startswith("without-late") else 0
    cause = f"lost {', '.join(lost)}" if code else None
    tell(type="ended", exit_code=code, cause=cause, lost_machines=lost)
    sys.exit(code)
if name.startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not name.startswith("quick"):
    while True:
        tell(type="moved", share=0.25, activity="waiting for work")
        time.sleep(0.02)
tell(type="ended", exit_code=0)
"""


def study(path: Path, *cells: str, limit_s: float, pool: PlannedPool | None = None) -> StudyDir:
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
            pool=pool,
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
    trial = TrialProcess(
        TrialAssignment(Planned("cell", 0, 1), {}, PLACE, order, tmp_path / "log", 0)
    )
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


@pytest.fixture
def pool(tmp_path: Path) -> PlannedPool:
    file = tmp_path / "pool.yaml"
    file.write_text("machines: [a, b, c]\n")
    return PlannedPool(file=str(file), machines=["a", "b", "c"])


class Watcher:
    """Notes which trials were put off, and on which machines they begin anew."""

    def __init__(self) -> None:
        self.put_off: list[tuple[str, tuple[str, ...]]] = []

    def study_started(self, *_: object) -> None:
        pass

    def moved(self, *_: object) -> None:
        pass

    def trial_ended(self, *_: object) -> None:
        pass

    def trial_put_off(self, trial: Trial, left: TrialPlace) -> None:
        self.put_off.append((trial.cell, left.machines))


def test_a_trial_that_ends_with_a_machine_begins_anew_on_the_others(
    tmp_path: Path, pool: PlannedPool
) -> None:
    made = study(tmp_path / "study", "without", "without-too", limit_s=60, pool=pool)
    watcher = Watcher()
    first, second = StudyRunner(made, cores=[0], observers=[watcher]).run().trials
    assert watcher.put_off == [("without", ("a", "c"))]
    assert [(trial.state, trial.machines) for trial in (first, second)] == [
        ("finished", ["a", "c"])
    ] * 2
    assert [path.name for path in made.abandoned.iterdir()] == ["without-r1-on-3"]
    assert made.trials() == [first, second]


def test_a_run_that_went_on_without_a_machine_is_not_compared(
    tmp_path: Path, pool: PlannedPool
) -> None:
    made = study(tmp_path / "study", "quick", "quick-too", "without-late", limit_s=60, pool=pool)
    trials = StudyRunner(made, cores=[0]).run().trials
    assert [trial.machines for trial in trials] == [["a", "b", "c"], ["a", "b", "c"], ["a", "c"]]
    assert [trial.cell for trial in on_other_machines(trials)] == ["without-late"]
    # With all machines there again, it is repeated with them.
    again = StudyRunner(made, cores=[0], retry_failed=True).run().trials
    assert len(again) == 3


def test_a_study_without_machines_ends_with_the_cause(tmp_path: Path, pool: PlannedPool) -> None:
    made = study(tmp_path / "study", "without-all", "quick", limit_s=60, pool=pool)
    with pytest.raises(LaunchError, match=r"no machine .* is left: lost a, b, c; .*retry-failed"):
        StudyRunner(made, cores=[0]).run()
    assert [trial.state for trial in made.trials()] == ["failed"]


def test_trials_at_the_same_time_get_like_machines() -> None:
    fast = [MachineSpec(host=name, cores=4) for name in ("a", "b")]
    slow = [MachineSpec(host=name, cores=2) for name in ("c", "d")]
    machines = [fast[0], slow[0], fast[1], slow[1]]
    assert divide_machines(machines, 2) == [["a", "c"], ["b", "d"]]
    assert divide_machines(machines, "auto") == [["a", "c", "b", "d"]]
    with pytest.raises(SpecError, match="parallel is 4, but a, c, b, d cannot be divided"):
        divide_machines(machines, 4)
