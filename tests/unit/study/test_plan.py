from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.records.study import StudyManifest
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.study_file import study_from_mapping
from phalanx.study.places import assign_core_sets, cores_wanted
from phalanx.study.plan import amend, plan_study


def plan(**fields: Any) -> StudyManifest:
    study = {"study": "s", "axes": {"strategy": ["allreduce", "local_sgd"], "workers": [1, 2]}}
    return plan_study(study_from_mapping(study | fields), data_root=Path(), cache_root=Path())


def test_seeds_are_the_same_in_every_cell_and_follow_the_job() -> None:
    assert plan(job={"seed": 7}, repeats=3).seeds == [7, 8, 9]
    assert plan(seeds=[3, 1]).seeds == [3, 1]


def test_the_gate_finds_the_axis_of_its_baseline() -> None:
    gate = plan(gate={"tolerance": 0.1, "baseline": "allreduce"}).gate
    assert gate is not None
    assert (gate.axis, gate.baseline) == ("strategy", "allreduce")
    gate = plan(gate={"tolerance": 0.1, "baseline": "workers=2"}).gate
    assert gate is not None
    assert (gate.axis, gate.baseline) == ("workers", "2")


def test_a_baseline_that_is_no_label_or_two_is_refused() -> None:
    with pytest.raises(SpecError, match="'ring' is no label of an axis"):
        plan(gate={"tolerance": 0.1, "baseline": "ring"})
    twice = {"workers": [1, 2], "epochs": [1, 2]}
    with pytest.raises(SpecError, match="label of several axes; write 'workers=2'"):
        plan(axes=twice, gate={"tolerance": 0.1, "baseline": "2"})


def test_report_parts_and_their_files_are_checked_with_the_plan() -> None:
    with pytest.raises(SpecError, match=r"absent\.yaml: there is no such file"):
        plan(report_parts=[{"name": "phalanx_published:PUBLISHED", "file": "absent.yaml"}])
    with pytest.raises(SpecError, match="unknown report part 'publishd'"):
        plan(report_parts=["publishd"])


def test_more_repeats_keep_the_seeds_that_were_used() -> None:
    longer = amend(plan(seeds=[5, 6]), repeats=4, parallel="auto", budget="2h")
    assert longer.seeds == [5, 6, 7, 8]
    assert (longer.repeats.min, longer.parallel, longer.budget_s) == (4, "auto", 7200)
    with pytest.raises(SpecError, match="is no time"):
        amend(plan(), budget="soon")


def job(**fields: object) -> JobSpec:
    return job_from_mapping(fields)


def test_lanes_share_no_core() -> None:
    lanes = assign_core_sets(range(10, 18), [job(workers=2)], 3)
    assert lanes == [[10, 11], [12, 13], [14, 15]]
    assert assign_core_sets([0, 1], [job(workers=9)], 1) == [[0, 1]]


def test_automatic_lanes_fit_the_largest_job() -> None:
    served = job(workers=2, strategy={"name": "parameter_server", "servers": 2})
    assert cores_wanted(served) == 4
    assert cores_wanted(job(workers=2, threads=3)) == 6
    assert len(assign_core_sets(range(8), [job(workers=1), served], "auto")) == 2
    assert len(assign_core_sets(range(2), [served], "auto")) == 1


def test_more_lanes_than_cores_are_refused() -> None:
    with pytest.raises(SpecError, match="parallel is 4, but there are only 2 cores"):
        assign_core_sets([0, 1], [job()], 4)
