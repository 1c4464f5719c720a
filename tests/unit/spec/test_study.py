from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from phalanx.errors import SpecError
from phalanx.records.summary import Summary
from phalanx.spec.study import Metric, RepeatsSpec, UntilSpec, parse_duration
from phalanx.spec.study_file import load_study, study_from_mapping

AXES = {"workers": [1, 2]}


def spec_of(**fields: Any) -> Any:
    return study_from_mapping({"study": "s", "axes": AXES, **fields}).spec


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20min", 1200), ("1h30min", 5400), ("1.5 h", 5400), ("2min 5s", 125)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "0s", "min", "5min 1h", "-3s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert parse_duration(text) is None
    with pytest.raises(SpecError, match="write 90s, 20min or 1h30min"):
        spec_of(budget=text)


def test_a_number_of_repeats_is_both_bounds() -> None:
    assert (spec_of(repeats=4).planned_repeats.min, spec_of(repeats=4).planned_repeats.most) == (
        4,
        4,
    )
    assert spec_of().planned_repeats.most == 3
    assert spec_of(seeds=[5, 9]).planned_repeats.most == 2


def test_repeats_until_have_a_greatest_number() -> None:
    assert RepeatsSpec(until=UntilSpec(half_width="2 %")).most == 10
    assert UntilSpec(half_width="2 %").width == (0.02, True)
    assert UntilSpec(half_width="2.5%").width == (0.025, True)
    assert UntilSpec(half_width=0.5).width == (0.5, False)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"repeats": 0}, "repeats.min must be a whole number above 0, not 0"),
        ({"repeats": {"min": 3, "max": 2}}, "repeats.max is 2, which is below min"),
        ({"repeats": {"min": 3, "max": 5}}, "repeats.max has no effect without until"),
        ({"repeats": {"until": {"half_width": "two"}}}, "'two' is no width"),
        ({"repeats": {"until": {"half_width": 0}}}, "a half-width is above 0"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": [1, 2], "repeats": 3}, "seeds has 2 entries for up to 3 repeats"),
        ({"gate": {"tolerance": 0.1}}, "gate.baseline is missing"),
        ({"gate": {"tolerance": 0, "baseline": "x"}}, "gate.tolerance must be a number above 0"),
        ({"recommend": {"prefer": "cost"}}, "needs price_per_hour"),
        ({"parallel": "all"}, "parallel must be a whole number above 0 or 'auto', not 'all'"),
        ({"metric": "speed"}, "metric must be "),
        ({"repeat": 3}, "unknown key 'repeat'; did you mean 'repeats'"),
        ({"job": 3}, "job must be a mapping or the path of a job file, not 3"),
        ({"axes": 3}, "axes must be a mapping, not 3"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        study_from_mapping({"study": "s", "axes": AXES} | fields)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: s\naxes: {workers: [1]}\nrepeats:\n  min: 2\n  most: 3\n")
    with pytest.raises(SpecError, match=r"s\.yaml:5: unknown key 'most' in repeats"):
        load_study(path)


def test_the_job_may_lie_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("epochs: 7\n")
    (tmp_path / "s.yaml").write_text("study: s\njob: base.yaml\naxes: {workers: [1]}\n")
    assert load_study(tmp_path / "s.yaml").spec.job == {"epochs": 7}
    with pytest.raises(SpecError, match="there is no such file"):
        study_from_mapping({"study": "s", "axes": AXES, "job": "absent.yaml"})


def test_overrides_reach_the_study_its_job_and_whole_axes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "study: s\njob: {epochs: 7, optimizer: sgd}\naxes: {batch.global: [1]}\nrepeats: 2\n"
    )
    overrides = [
        "job.epochs=2",
        "job.optimizer.lr=0.5",
        "axes.batch.global=[32, 64]",
        "repeats=5",
        "budget=3min",
    ]
    spec = load_study(tmp_path / "s.yaml", overrides).spec
    assert spec.job == {"epochs": 2, "optimizer": {"name": "sgd", "lr": 0.5}}
    assert spec.axes == {"batch.global": [32, 64]}
    assert (spec.planned_repeats.min, spec.budget) == (5, "3min")


def test_every_metric_is_a_number_of_the_summary() -> None:
    fields = {field.name for field in msgspec.structs.fields(Summary)}
    assert set(get_args(Metric)) <= fields
