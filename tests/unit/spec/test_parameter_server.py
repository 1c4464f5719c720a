from __future__ import annotations

import pytest
from pydantic import ValidationError

from phalanx.spec.parameter_server import ParameterServerSpec


def spec(**fields: object) -> ParameterServerSpec:
    return ParameterServerSpec.model_validate(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"consistency": "bsp", "backup": 2},
        {"consistency": "ssp", "staleness": 0},
        {"consistency": "ssp", "staleness": 9, "overlap": True},
        {"consistency": "dssp", "staleness_range": [2, 2]},
        {"consistency": "k_sync", "k": 3},
        {"consistency": "k_async", "k": 3, "lr_scaling": "by_staleness"},
        {"delay_compensation": "adaptive", "delay_lambda": 1.5},
        {"servers": "colocated", "max_shards": 2, "compression": "int8"},
    ],
)
def test_a_spec_survives_being_written_out_in_full(fields: dict[str, object]) -> None:
    made = spec(**fields)
    # Every default is in the dump; none of them may count as a setting without effect.
    assert spec(**made.model_dump()) == made


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"consistency": "bsp", "staleness": 5}, "staleness has no effect with consistency bsp"),
        ({"staleness_range": [1, 2]}, "it belongs to dssp"),
        ({"k": 2}, "k has no effect with consistency async; it belongs to k_sync and k_async"),
        ({"backup": 1}, "backup has no effect"),
        ({"consistency": "bsp", "overlap": True}, "overlap has no effect"),
        ({"consistency": "k_sync", "k": 1, "delay_compensation": "constant"}, "has no effect"),
        ({"consistency": "bsp", "lr_scaling": "by_staleness"}, "lr_scaling by_staleness has no"),
        ({"delay_lambda": 1.0}, "delay_lambda has no effect while delay_compensation is off"),
        ({"consistency": "k_async"}, "k_async needs k"),
        ({"consistency": "dssp", "staleness_range": [5, 2]}, "two rising numbers"),
        ({"consistency": "dssp", "staleness_range": [5]}, "two rising numbers"),
        ({"consistency": "ssp", "staleness": 0, "overlap": True}, "ssp with staleness 0 is bsp"),
        ({"overlap": True, "delay_compensation": "adaptive"}, "use one of the two"),
    ],
)
def test_what_would_have_no_effect_is_refused_in_a_sentence(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        spec(**fields)


@pytest.mark.parametrize(
    ("fields", "synchronous"),
    [
        ({}, False),
        ({"consistency": "bsp"}, True),
        ({"consistency": "bsp", "backup": 1}, False),
        ({"consistency": "ssp", "staleness": 0}, True),
        ({"consistency": "ssp"}, False),
    ],
)
def test_synchronous(fields: dict[str, object], synchronous: bool) -> None:
    assert spec(**fields).synchronous == synchronous


def test_numbers_must_fit_the_workers() -> None:
    spec(consistency="k_sync", k=3).check_workers(3)
    spec(consistency="k_async", k=9).check_workers(3)
    with pytest.raises(Exception, match="only 2 workers can push"):
        spec(consistency="k_sync", k=3).check_workers(2)
    with pytest.raises(Exception, match="at most 1 that need not"):
        spec(consistency="bsp", backup=2).check_workers(2)
