from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.records.study import PlannedCell, PlannedRepeats, StudyManifest, Trial
from phalanx.study.stopping import (
    CellState,
    Planned,
    Standing,
    estimate_rest,
    expected_repeats,
    interval_half_width,
    is_narrow,
    next_trial,
    used_s,
    wanted_repeats,
)


def manifest(
    *cells: str, repeats: PlannedRepeats | None = None, budget_s: float | None = None
) -> StudyManifest:
    planned = repeats or PlannedRepeats(min=2, max=2)
    return StudyManifest(
        name="s",
        title="s",
        axes={"cell": list(cells)},
        cells=[PlannedCell(id=cell, settings={"cell": cell}) for cell in cells],
        metric="train_s",
        repeats=planned,
        seeds=list(range(11, 11 + planned.max)),
        budget_s=budget_s,
    )


def trial(cell: str, repeat: int, *, elapsed_s: float = 10.0, state: str = "finished") -> Trial:
    return Trial(
        cell=cell,
        settings={"cell": cell},
        seed=11 + repeat,
        repeat=repeat,
        state=state,
        run="x",
        elapsed_s=elapsed_s,
        cores=[0],
    )


def until(
    half_width: float, *, least: int = 2, most: int = 5, relative: bool = True
) -> PlannedRepeats:
    return PlannedRepeats(
        min=least, max=most, metric="train_s", half_width=half_width, relative=relative
    )


def play(plan: StudyManifest, values: dict[str, list[float]], limit: int = 1000) -> list[Planned]:
    """Run trials that end at once, one after another; the value of each is known beforehand."""
    trials: list[Trial] = []
    known: dict[tuple[str, int], float] = {}
    order: list[Planned] = []
    for _ in range(limit):
        standing = Standing.of(plan, trials, known, spent_s=sum(one.elapsed_s for one in trials))
        planned = next_trial(plan, standing)
        if planned is None:
            return order
        order.append(planned)
        trials.append(trial(planned.cell, planned.repeat))
        known[planned.cell, planned.repeat] = values[planned.cell][planned.repeat]
    raise AssertionError("the study never ends")


def test_repeats_are_interleaved_with_the_same_seeds() -> None:
    order = play(manifest("a", "b"), {"a": [1, 1], "b": [1, 1]})
    assert [(one.cell, one.repeat, one.seed) for one in order] == [
        ("a", 0, 11),
        ("b", 0, 11),
        ("a", 1, 12),
        ("b", 1, 12),
    ]


def test_the_interval_is_that_of_student() -> None:
    # Mean 10, deviation 1, n = 3: t(0.975, 2) = 4.302653; 4.302653 / sqrt(3) = 2.484138.
    assert interval_half_width([9, 10, 11], until(0.1)) == pytest.approx(0.2484138, abs=1e-6)
    plain = until(2.5, relative=False)
    assert interval_half_width([9, 10, 11], plain) == pytest.approx(2.484138, abs=1e-6)
    assert is_narrow([9, 10, 11], plain)
    assert not is_narrow([9, 10, 11], until(2.4, relative=False))
    # Two values, n = 2: t(0.975, 1) = 12.7062; deviation sqrt(2); half-width 12.7062.
    assert interval_half_width([9, 11], until(2.5, relative=False)) == pytest.approx(
        12.7062, abs=1e-4
    )


def test_one_value_has_no_interval_and_a_mean_of_zero_no_share() -> None:
    assert interval_half_width([5], until(0.1)) is None
    assert not is_narrow([5], until(0.1))
    assert interval_half_width([-1, 1], until(0.1)) == math.inf
    assert is_narrow([0, 0], until(0.1))


def test_a_steady_cell_stops_at_min_and_an_unsteady_one_goes_on_to_max() -> None:
    values = {"steady": [10, 10.001, 10, 10, 10], "wild": [5, 15, 5, 15, 5]}
    order = play(manifest("steady", "wild", repeats=until(0.05)), values)
    counts = {name: sum(one.cell == name for one in order) for name in values}
    assert counts == {"steady": 2, "wild": 5}


def test_a_cell_stops_at_the_repeat_that_makes_it_narrow() -> None:
    # After 3 values the half-width is 24.8 % of the mean, see above; after a fourth of 10 it is
    # t(0.975, 3) * 0.8165 / 2 / 10 = 13.0 %.
    order = play(manifest("a", repeats=until(0.15)), {"a": [9, 11, 10, 10, 10]})
    assert len(order) == 4


def test_failures_count_as_attempts_and_two_without_success_end_a_cell() -> None:
    plan = manifest("a", "b", repeats=PlannedRepeats(min=4, max=4))
    trials = [trial("a", 0, state="failed"), trial("b", 0), trial("a", 1, state="failed")]
    standing = Standing.of(plan, trials, {})
    assert standing.cells["a"].is_hopeless
    assert next_trial(plan, standing) == Planned("b", 1, 12)
    one_good = Standing.of(plan, [*trials, trial("a", 2)], {})
    assert not one_good.cells["a"].is_hopeless


def test_what_runs_now_is_not_started_again() -> None:
    plan = manifest("a", "b")
    standing = Standing.of(plan, [], {}, running=[("a", 0), ("b", 0)])
    assert next_trial(plan, standing) == Planned("a", 1, 12)
    all_running = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert next_trial(plan, Standing.of(plan, [], {}, running=all_running)) is None


def test_a_trial_without_a_line_is_run_again_before_any_later_one() -> None:
    plan = manifest("a", "b", repeats=PlannedRepeats(min=3, max=3))
    standing = Standing.of(plan, [trial("a", 0), trial("b", 0), trial("b", 1)], {})
    assert next_trial(plan, standing) == Planned("a", 1, 12)


def test_nothing_is_started_that_would_pass_the_budget() -> None:
    plan = manifest("a", "b", budget_s=25.0)
    assert len(play(plan, {"a": [1, 1], "b": [1, 1]})) == 2
    spent = Standing.of(plan, [trial("a", 0, elapsed_s=15)], {}, spent_s=15)
    assert next_trial(plan, spent) is None
    long_and_short = [trial("a", 0, elapsed_s=20), trial("b", 0, elapsed_s=2)]
    fits = Standing.of(plan, long_and_short, {}, spent_s=22)
    assert next_trial(plan, fits) == Planned("b", 1, 12), "what still fits is run"


def test_a_budget_below_one_trial_still_runs_the_first() -> None:
    assert len(play(manifest("a", budget_s=1.0), {"a": [1, 1]})) == 1


def test_time_used_counts_overlaps_once_and_gaps_not_at_all() -> None:
    assert used_s([(0, 10), (5, 15), (100, 101), (6, 7)]) == 16
    assert used_s([]) == 0


def test_the_outlook_takes_medians_per_cell() -> None:
    plan = manifest("a", "b", repeats=PlannedRepeats(min=3, max=3))
    trials = [trial("a", 0, elapsed_s=10), trial("b", 0, elapsed_s=100)]
    running = {("a", 1): 4.0}
    standing = Standing.of(plan, trials, {}, running=running)
    outlook = estimate_rest(plan, standing, running=running, core_sets=1)
    # a: 6 s of the running one and one more of 10 s; b: two more of 100 s.
    assert outlook.left_s == 216
    assert (outlook.ended, outlook.expected) == (2, 6)
    assert estimate_rest(plan, standing, running=running, core_sets=2).left_s == 108
    nothing = estimate_rest(plan, Standing.of(plan, [], {}), running={}, core_sets=1)
    assert nothing.left_s is None


def test_expected_repeats_follow_the_square_of_the_width() -> None:
    state = CellState(attempted={0, 1, 2}, ended=3, values=[9, 10, 11], elapsed_s=[1, 1, 1])
    # Half-width 24.84 %; for 20 %: 3 * (0.2484 / 0.20)^2 = 4.63, so 5.
    assert expected_repeats(state, until(0.20, most=10)) == 5
    assert expected_repeats(state, until(0.01, most=10)) == 10
    assert expected_repeats(state, until(0.30, most=10)) == 3


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 5),
    st.floats(0.001, 1),
    st.lists(st.lists(st.floats(0.1, 100), min_size=10, max_size=10), min_size=4, max_size=4),
)
def test_every_study_ends_with_each_cell_between_min_and_max(
    number: int, least: int, more: int, width: float, values: list[list[float]]
) -> None:
    names = [f"c{index}" for index in range(number)]
    plan = manifest(*names, repeats=until(width, least=least, most=least + more))
    order = play(plan, dict(zip(names, values, strict=False)))
    assert len({(one.cell, one.repeat) for one in order}) == len(order), "no trial twice"
    for name, own in zip(names, values, strict=False):
        repeats = [one.repeat for one in order if one.cell == name]
        assert repeats == list(range(len(repeats)))
        assert least <= len(repeats) <= least + more
        if len(repeats) < least + more:
            assert is_narrow(own[: len(repeats)], plan.repeats)
        for early in range(least, len(repeats)):
            assert not is_narrow(own[:early], plan.repeats), "it was already narrow"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=8),
    st.integers(1, 4),
)
def test_a_journal_in_any_order_leads_to_a_trial_that_is_not_in_it(
    lines: list[tuple[str, int, bool]], least: int
) -> None:
    plan = manifest("a", "b", repeats=PlannedRepeats(min=least, max=4))
    latest = {(cell, repeat): good for cell, repeat, good in lines}
    trials = [
        trial(cell, repeat, state="finished" if good else "failed")
        for (cell, repeat), good in latest.items()
    ]
    standing = Standing.of(plan, trials, {})
    planned = next_trial(plan, standing)
    if planned is not None:
        assert (planned.cell, planned.repeat) not in latest
        assert planned.seed == plan.seeds[planned.repeat]
        assert planned.repeat < wanted_repeats(standing.cells[planned.cell], plan.repeats)
