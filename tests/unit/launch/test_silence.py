"""Silence counts on undisturbed time of the listener alone; made-up clocks."""

from __future__ import annotations

from phalanx.launch.silence import LONGEST_TICK_S, SilenceMeter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rounds(meter: SilenceMeter, clock: Clock, seconds: float, heard_s: float) -> float:
    """Let time pass as an undisturbed controller does."""
    silent_s = 0.0
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        meter.tick()
        silent_s = meter.silent_s("a", heard_s)
    return silent_s


def test_silence_is_the_time_since_something_was_heard() -> None:
    clock = Clock()
    meter = SilenceMeter(clock)
    assert 2.8 < rounds(meter, clock, 3.0, heard_s=100.0) <= 3.0
    assert rounds(meter, clock, 0.1, heard_s=103.0) == 0.0
    assert 4.8 < rounds(meter, clock, 5.0, heard_s=103.0) <= 5.1


def test_a_listener_that_was_suspended_blames_nobody() -> None:
    clock = Clock()
    meter = SilenceMeter(clock)
    before = rounds(meter, clock, 1.0, heard_s=100.0)
    clock.now += 600.0
    meter.tick()
    assert meter.silent_s("a", 100.0) <= before + LONGEST_TICK_S


def test_a_machine_that_is_not_listened_to_is_not_silent() -> None:
    clock = Clock()
    meter = SilenceMeter(clock)
    rounds(meter, clock, 3.0, heard_s=100.0)
    meter.tick()
    assert meter.silent_s("a", 100.0, is_held_up=True) == 0.0
