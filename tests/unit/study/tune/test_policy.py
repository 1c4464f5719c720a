"""The searches as pure state machines: fed with made-up runs, asked what comes next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.study.tune.policy import (
    SYNCHRONOUS,
    FinishedTrial,
    Method,
    TuneDecision,
    TuneGoal,
    bar_epoch,
    bar_value,
    decay_share,
    decide,
    first_shares,
)
from phalanx.study.tune.results import payback_of

Accuracy = Callable[[float, int], float]
"""What a run comes to, by share and repeat."""


def search(
    aim: TuneGoal, accuracy: Accuracy, drops: Callable[[float], bool] = lambda share: False
) -> tuple[TuneDecision, list[FinishedTrial]]:
    """Carry a search out; every decision asks only for what has not been run."""
    ran: list[FinishedTrial] = []
    while not (decision := decide(aim, ran)).is_over:
        done = {(one.share, one.repeat) for one in ran}
        fresh = [
            FinishedTrial(
                wanted.share,
                repeat,
                accuracy(wanted.share, repeat),
                dropped=wanted.barred and drops(wanted.share),
            )
            for wanted in decision.wanted
            for repeat in range(wanted.runs)
            if (wanted.share, repeat) not in done
        ]
        assert fresh, "a search that wants nothing new never ends"
        ran += fresh
    return decision, ran


def cliff(share: float) -> Accuracy:
    """As accurate as the synchronous job from a share on, and far less below it."""
    return lambda at, repeat: 0.9 if at >= share else 0.8


def tried(decision: TuneDecision) -> list[float]:
    return [verdict.share for verdict in decision.outcomes]


def test_the_published_path_when_every_share_is_good_enough() -> None:
    decision, ran = search(TuneGoal(), cliff(0.0))
    assert tried(decision) == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert decision.found == 0.03125
    assert len(ran) == 30, "five runs of the synchronous job and of five settings"


def test_the_interval_moves_up_when_a_share_misses() -> None:
    decision, _ = search(TuneGoal(runs=1), cliff(0.3))
    assert tried(decision) == [1.0, 0.5, 0.25, 0.375, 0.3125, 0.28125]
    assert decision.found == 0.3125


def test_nothing_is_found_when_every_share_misses() -> None:
    decision, _ = search(TuneGoal(runs=2, max_settings=3), cliff(1.0))
    assert tried(decision) == [1.0, 0.5, 0.75, 0.875]
    assert decision.found is None


def test_the_target_is_the_mean_of_the_synchronous_runs_less_the_tolerance() -> None:
    values = {SYNCHRONOUS: [0.92, 0.94], 0.5: [0.91, 0.93], 0.25: [0.91, 0.929]}
    decision, _ = search(
        TuneGoal(runs=2, max_settings=2), lambda share, repeat: values[share][repeat]
    )
    assert decision.target == pytest.approx(0.92)
    assert [verdict.outcome for verdict in decision.outcomes] == ["meets", "meets", "misses"]


def test_a_failed_run_does_not_meet_the_target_and_a_failed_reference_ends_the_search() -> None:
    aim = TuneGoal(runs=2, max_settings=1)
    reference = [FinishedTrial(SYNCHRONOUS, repeat, 0.9) for repeat in range(2)]
    decision = decide(aim, [*reference, FinishedTrial(0.5, 0, None)])
    assert decision.is_over
    assert decision.outcomes[-1].outcome == "failed"
    broken = decide(aim, [FinishedTrial(SYNCHRONOUS, 0, None)])
    assert (broken.is_over, broken.target) == (True, None)


def test_halving_runs_all_shares_once_and_ends_laggards() -> None:
    aim = TuneGoal(method="halving", runs=1)
    decision, ran = search(aim, cliff(0.0), drops=lambda share: share < 0.1)
    assert tried(decision) == [1.0, *first_shares(5)]
    assert [one.outcome for one in decision.outcomes[-2:]] == ["dropped", "dropped"]
    assert decision.found == 0.125
    assert len(ran) == 6


def test_halving_confirms_the_smallest_survivor_and_goes_on_to_the_next() -> None:
    lucky = {0.25: [0.9, 0.7, 0.7]}

    def accuracy(share: float, repeat: int) -> float:
        return lucky.get(share, [0.9] * 3)[repeat]

    aim = TuneGoal(method="halving", runs=3, max_settings=2)
    decision, ran = search(aim, accuracy)
    outcomes = {one.share: one.outcome for one in decision.outcomes}
    assert outcomes == {1.0: "meets", 0.5: "meets", 0.25: "misses"}
    assert decision.found == 0.5
    assert len(ran) == 9


METHODS: Sequence[Method] = ("binary", "halving")


@given(
    method=st.sampled_from(METHODS),
    runs=st.integers(1, 4),
    max_settings=st.integers(1, 8),
    edge=st.floats(0, 1),
)
def test_a_search_finds_the_edge_as_closely_as_it_can(
    method: Method, runs: int, max_settings: int, edge: float
) -> None:
    aim = TuneGoal(method=method, runs=runs, max_settings=max_settings)
    decision, ran = search(aim, cliff(edge))
    good = [share for share in tried(decision) if edge <= share < SYNCHRONOUS]
    assert decision.found == min(good, default=None)
    assert len(ran) == len({(one.share, one.repeat) for one in ran}), "nothing is run twice"
    if method == "binary":
        best = decision.found if decision.found is not None else 1.0
        assert best - edge <= 0.5**max_settings, "the interval was halved every time"


@given(
    method=st.sampled_from(METHODS),
    runs=st.integers(1, 3),
    edge=st.floats(0, 1),
    cut=st.integers(0, 40),
    order=st.randoms(use_true_random=False),
)
def test_a_search_that_is_interrupted_anywhere_comes_to_the_same(
    method: Method, runs: int, edge: float, cut: int, order: object
) -> None:
    aim = TuneGoal(method=method, runs=runs, max_settings=4)
    whole, ran = search(aim, cliff(edge))
    part = ran[:cut]
    order.shuffle(part)  # type: ignore[attr-defined]  # a Random
    missing = {(one.share, one.repeat): one for one in ran}
    while not (decision := decide(aim, part)).is_over:
        wanted = [(one.share, repeat) for one in decision.wanted for repeat in range(one.runs)]
        known = {(one.share, one.repeat) for one in part}
        part.append(missing[next(key for key in wanted if key not in known)])
    assert decision == whole


def job(schedule: object, epochs: int = 180) -> JobSpec:
    return job_from_mapping({"epochs": epochs, "schedule": schedule})


DROPS = {"name": "milestones", "at_epochs": [80, 130]}


@pytest.mark.parametrize(
    ("share", "epoch"), [(0.03125, 81), (0.25, 81), (0.5, 91), (0.75, 136), (0.995, None)]
)
def test_a_run_is_looked_at_one_epoch_after_decay_and_switch(
    share: float, epoch: int | None
) -> None:
    assert bar_epoch(job(DROPS), share) == epoch


def test_the_decay_of_schedules_without_milestones() -> None:
    assert decay_share(job("constant")) == 0.5
    assert decay_share(job({"name": "milestones", "at": [0.4]})) == 0.4
    cosine = decay_share(job({"name": "cosine"}))
    assert (1 + math.cos(math.pi * cosine)) / 2 == pytest.approx(0.2)
    assert decay_share(job({"name": "cosine", "floor": 0.5})) == 0.5, "it never gets so low"


def test_the_bar_is_the_synchronous_curve_less_two_tolerances() -> None:
    assert bar_value({81: 0.88}, 81, tolerance=0.01) == pytest.approx(0.86)
    assert bar_value({81: 0.88}, 82, tolerance=0.01) is None


def test_the_cost_of_the_published_search() -> None:
    """Sync-Switch on CIFAR-10: 175.6 min synchronous, 26 min asynchronous, a straight mix."""

    def minutes(share: float) -> float:
        return 26.0 + share * 149.6

    _, ran = search(TuneGoal(), cliff(0.0))
    whole = {share: [minutes(share)] * 5 for share in (SYNCHRONOUS, *first_shares(5))}
    found = payback_of([minutes(one.share) for one in ran], whole, 0.03125)
    assert found.cost_in_jobs == pytest.approx(13.0, abs=0.25)
    assert found.saving_share == pytest.approx(0.825, abs=0.005)
    assert found.jobs_to_pay == pytest.approx(15.6, abs=0.5)


def test_a_share_that_saves_nothing_never_pays() -> None:
    slower = payback_of([10.0, 11.0], {SYNCHRONOUS: [10.0], 0.5: [11.0]}, 0.5)
    assert (slower.saving_s, slower.jobs_to_pay) == (-1.0, None)
    unknown = payback_of([10.0], {SYNCHRONOUS: [10.0]}, None)
    assert (unknown.cost_in_jobs, unknown.saving_s) == (1.0, None)
