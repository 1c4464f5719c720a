"""The plan of a search: cells that grow, bars from the synchronous curve, labels that read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.records.study import Trial
from phalanx.spec.loader import job_from_mapping
from phalanx.study.stopping import Standing, next_trial
from phalanx.study.tune.policy import SYNCHRONOUS, TuneGoal, WantedTrial
from phalanx.study.tune.search_plan import (
    MAX_SETTINGS,
    SearchRequest,
    plan_search,
    share_label,
    share_of,
    with_cells,
)

JOB: dict[str, object] = {
    "workers": 2,
    "epochs": 10,
    "evaluate": "end",
    "schedule": {"name": "milestones", "at": [0.5]},
}


def request(seeds: tuple[int, ...] = (7,), **aim: object) -> SearchRequest:
    settings = {"method": "halving", "runs": 1, **aim}
    return SearchRequest(JOB, TuneGoal(**settings), seeds, Path("d"), Path("c"))  # type: ignore[arg-type]


def trial_of(label: str) -> Trial:
    return Trial(
        cell="x",
        settings={"switch": label},
        seed=1,
        repeat=0,
        state="finished",
        run=None,
        elapsed_s=1.0,
        cores=[],
    )


def test_every_share_of_a_search_reads_back_from_its_label() -> None:
    shares = {number / 2**MAX_SETTINGS for number in range(1, 2**MAX_SETTINGS + 1)}
    assert all(share_of(trial_of(share_label(share))) == share for share in shares)


def test_a_search_begins_with_the_synchronous_job() -> None:
    manifest, tune = plan_search(request())
    assert [cell.id for cell in manifest.cells] == ["synchronous"]
    assert manifest.cells[0].job["strategy"]["name"] == "allreduce"
    assert manifest.cells[0].job["evaluate"] == "epoch", "bars need a curve"
    assert (tune.metric, tune.job) == ("val_accuracy", JOB)


def test_cells_are_added_in_order_with_their_bars() -> None:
    manifest, tune = plan_search(request(tolerance=0.01))
    wanted = [WantedTrial(share, 1, barred=True) for share in (0.75, 0.5, 0.25)]
    curve = {6: 0.8, 9: 0.9}
    grown = with_cells(manifest, tune, wanted, curve=curve)
    assert grown.axes == {"switch": ["synchronous", "25 %", "50 %", "75 %"]}
    jobs = {cell.id: job_from_mapping(cell.job) for cell in grown.cells}
    bars = {name: job.early_stop and job.early_stop.bar for name, job in jobs.items()}
    assert bars["synchronous"] is None
    for name, epoch, value in [("at-25", 6, 0.78), ("at-50", 6, 0.78), ("at-75", 9, 0.88)]:
        bar = bars[name]
        assert bar is not None
        assert (bar.epoch, bar.value) == (epoch, pytest.approx(value))


def test_a_cell_that_is_confirmed_is_run_more_often_than_the_others() -> None:
    manifest, tune = plan_search(request((1, 2, 3), runs=3))
    manifest = with_cells(manifest, tune, [WantedTrial(0.5, 1), WantedTrial(0.25, 3)], curve={})
    done = [("synchronous", 0), ("at-50", 0), ("at-25", 0)]
    left = []
    while True:
        planned = next_trial(manifest, Standing.of(manifest, [], {}, running=[*done, *left]))
        if planned is None:
            break
        left.append((planned.cell, planned.repeat))
    assert left == [("at-25", 1), ("at-25", 2)], "the synchronous job was asked for once so far"
    assert manifest.cell("synchronous").runs == 1
    assert share_of(trial_of("synchronous")) == SYNCHRONOUS


@pytest.mark.parametrize(
    ("seeds", "aim", "message"),
    [
        ((1, 2), {"runs": 3}, "3 different seeds"),
        ((1, 1), {"runs": 2}, "2 different seeds"),
        ((1,), {"max_settings": MAX_SETTINGS + 1}, "from 1 to 10 settings"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    seeds: tuple[int, ...], aim: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        plan_search(request(seeds, **aim))
