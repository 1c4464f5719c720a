"""Policies and filters as they are written."""

from __future__ import annotations

import math

import pytest

from phalanx.errors import SpecError
from phalanx.spec.selection import Filter, Policy, parse_filters, parse_policy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", Policy("all")),
        ("-gpus", Policy("gpu")),
        ("cpus", Policy("cpu")),
        ("fastest", Policy("fastest", 1)),
        ("cheapest:3", Policy("cheapest", 3)),
    ],
)
def test_policies(text: str, expected: Policy) -> None:
    assert parse_policy(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpus: 4+", (4, math.inf)),
        ("cores=4+", (4, math.inf)),
        ("memory: 8GB+", (8e9, math.inf)),
        ("price: 0.5-", (-math.inf, 0.5)),
        ("gpus:1", (1, 1)),
        ("speed: 10..20", (10, 20)),
    ],
)
def test_filters_of_numbers(text: str, expected: tuple[float, float]) -> None:
    (found,) = parse_filters([text])
    assert (found.low, found.high) == expected


def test_filters_of_words() -> None:
    (found,) = parse_filters(["label=rack-a"])
    assert found == Filter("label", word="rack-a", text="label=rack-a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpus", "'cpus' is no filter"),
        ("cpsu: 4", "unknown filter 'cpsu'; did you mean 'cpus'?"),
        ("cpus: many", "'many' is no number"),
        ("cpus: 8..4", "the range must rise"),
        ("memory: 8 apples", "'8 apples' is no size"),
        ("cpus: nan", "'nan' is no number"),
    ],
)
def test_what_is_no_filter(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_filters([text])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fast", "unknown policy 'fast'; did you mean 'fastest'?"),
        ("gpu:2", "policy 'gpu' takes no number"),
        ("fastest:0", "write a whole number above 0"),
    ],
)
def test_what_is_no_policy(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text)
    assert expected in str(caught.value)
