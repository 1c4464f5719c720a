"""Series stay small, and their sums stay exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.dashboard.series import (
    MAX_SAMPLES,
    MAX_STRETCHES,
    PhaseSums,
    StepSeries,
    Thinning,
    add_sums,
)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4), st.integers(1, 64)), max_size=40))
def test_widening_loses_no_sample(steps: list[tuple[float, float, int]]) -> None:
    series = StepSeries()
    for end_s, duration_s, samples in steps:
        series.add("worker-0", end_s - duration_s, end_s, PhaseSums(samples=samples))
    shown = sum(sums.samples for _, sums in series.over_time())
    assert shown == pytest.approx(sum(samples for *_, samples in steps))
    assert len(series.stretches) <= MAX_STRETCHES


def test_a_long_step_is_spread_over_its_time() -> None:
    series = StepSeries(width_s=1.0)
    series.add("worker-0", 0.5, 2.5, PhaseSums(samples=8.0))
    assert [sums.samples for _, sums in series.over_time()] == [2.0, 4.0, 2.0]


def test_recent_figures_leave_out_the_stretch_that_is_not_over() -> None:
    series = StepSeries(width_s=1.0)
    for second in range(100):
        series.add("worker-0", second, second + 0.5, PhaseSums(samples=10.0))
    recent, seconds = series.recent(30.0)
    assert seconds == 30.0
    assert add_sums(list(recent.values())).samples == 300.0


def test_thinning_keeps_a_bounded_number() -> None:
    thinning = Thinning()
    kept = [number for number in range(100_000) if thinning.choose()]
    assert kept[0] == 0
    assert len(kept) < MAX_SAMPLES * 10
    late = [number for number in kept if number > 90_000]
    assert len(late) < MAX_SAMPLES
