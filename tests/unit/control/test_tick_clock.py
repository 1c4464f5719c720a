from __future__ import annotations

import pytest

from phalanx.control.tick_clock import TickClock


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def tick(clock: TickClock, time: Time, seconds: float) -> float:
    time.now_s += seconds
    return clock.tick()


def test_ordinary_ticks_count_in_full() -> None:
    time = Time()
    clock = TickClock(time)
    assert [tick(clock, time, 0.1) for _ in range(5)] == pytest.approx([0.1] * 5)
    assert clock.elapsed_s == pytest.approx(0.5)
    assert clock.new_pause_s is None
    assert clock.recent_pause_s is None


def test_a_suspended_controller_ages_nobody() -> None:
    time = Time()
    clock = TickClock(time)
    assert tick(clock, time, 20.0) == 0.5
    assert clock.elapsed_s == 0.5
    assert clock.new_pause_s == 20.0
    tick(clock, time, 0.1)
    assert clock.new_pause_s is None, "told once"
    assert clock.recent_pause_s == 20.0


def test_a_pause_is_no_excuse_for_ever() -> None:
    time = Time()
    clock = TickClock(time)
    tick(clock, time, 20.0)
    for _ in range(200):
        tick(clock, time, 0.1)
    assert clock.recent_pause_s is None


def test_a_busy_second_is_not_worth_a_word() -> None:
    time = Time()
    clock = TickClock(time)
    assert tick(clock, time, 2.0) == 0.5
    assert clock.new_pause_s is None


def test_what_the_controller_knows_it_did_is_no_pause() -> None:
    time = Time()
    clock = TickClock(time)
    time.now_s += 20.0
    clock.skip()
    assert tick(clock, time, 0.1) == pytest.approx(0.1)
    assert clock.recent_pause_s is None
