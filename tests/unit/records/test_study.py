from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.records.study import (
    PlannedCell,
    PlannedGate,
    PlannedRepeats,
    StudyDir,
    StudyManifest,
    Trial,
)

MANIFEST = StudyManifest(
    name="s",
    title="S",
    axes={"batch": ["1", "2"]},
    cells=[PlannedCell(id="1", settings={"batch": "1"}, job={"epochs": 1})],
    metric="train_s",
    repeats=PlannedRepeats(min=1, max=1),
    seeds=[1],
    gate=PlannedGate(metric="test_accuracy", tolerance=0.01, axis="batch", baseline="1"),
)


def trial(repeat: int, *, state: str = "finished", cell: str = "1") -> Trial:
    return Trial(
        cell=cell,
        settings={"batch": "1"},
        seed=repeat + 1,
        repeat=repeat,
        state=state,
        run=f"run-{repeat}",
        elapsed_s=1.5,
        cores=[0, 1],
        wall_s=1e9,
    )


@pytest.fixture
def study(tmp_path: Path) -> StudyDir:
    return StudyDir.create(tmp_path / "s", MANIFEST)


def test_a_manifest_reads_back(study: StudyDir) -> None:
    assert StudyDir.open(study.path).manifest() == MANIFEST


def test_a_directory_holds_one_study(study: StudyDir) -> None:
    with pytest.raises(SpecError, match=r"already holds a study; go on with `phalanx study resume"):
        StudyDir.create(study.path, MANIFEST)


def test_another_directory_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is not a study directory"):
        StudyDir.open(tmp_path)


def test_trials_read_back_in_their_order(study: StudyDir) -> None:
    assert study.trials() == []
    for repeat in (1, 0):
        study.append(trial(repeat))
    assert study.trials() == [trial(1), trial(0)]


def test_of_a_trial_that_was_run_again_the_last_counts(study: StudyDir) -> None:
    study.append(trial(0, state="failed"))
    study.append(trial(1))
    study.append(trial(0))
    assert study.trials() == [trial(1), trial(0)]


@given(st.integers(1, 400))
def test_a_torn_line_is_no_trial_and_harms_no_other(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    study = StudyDir.create(tmp_path_factory.mktemp("s") / "s", MANIFEST)
    study.append(trial(0))
    whole = (study.path / "journal.jsonl").read_bytes()
    study.append(trial(1))
    both = (study.path / "journal.jsonl").read_bytes()
    torn = both[: -min(cut, len(both) - len(whole))]
    (study.path / "journal.jsonl").write_bytes(torn)
    assert study.trials() == [trial(0)]
    study.append(trial(2))
    kept = [trial(0), trial(1), trial(2)] if torn == both[:-1] else [trial(0), trial(2)]
    # A line that lacks only its end is whole as soon as the next one ends it.
    assert study.trials() == kept
