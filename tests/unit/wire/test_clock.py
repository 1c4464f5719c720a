from __future__ import annotations

import random

from phalanx.wire.clock import ClockProbe, ClockReading


def ask(probe: ClockProbe, now_s: float, *, ahead_s: float, there_s: float, back_s: float) -> None:
    """One exchange, which must not be the last of its round."""
    assert probe.ask(now_s)
    assert answer(probe, now_s, ahead_s=ahead_s, there_s=there_s, back_s=back_s) is None


def answer(
    probe: ClockProbe, now_s: float, *, ahead_s: float, there_s: float, back_s: float
) -> ClockReading | None:
    return probe.take(now_s, now_s + there_s + ahead_s, now_s + there_s + back_s)


def test_the_quickest_exchange_counts() -> None:
    probe = ClockProbe()
    for number in range(7):
        ask(probe, float(number), ahead_s=1000.0, there_s=0.3, back_s=0.001)
    assert probe.ask(8.0)
    reading = answer(probe, 8.0, ahead_s=1000.0, there_s=0.002, back_s=0.002)
    assert reading is not None
    assert abs(reading.offset_s - 1000.0) < 1e-9
    assert abs(reading.error_s - 0.002) < 1e-9


def test_the_true_offset_lies_within_the_error_whatever_the_ways_take() -> None:
    random_ways = random.Random(4)
    for _ in range(200):
        probe, now_s, reading = ClockProbe(), 50.0, None
        while reading is None:
            assert probe.ask(now_s)
            there_s, back_s = random_ways.expovariate(1e3), random_ways.expovariate(1e2)
            reading = answer(probe, now_s, ahead_s=-20.0, there_s=there_s, back_s=back_s)
            now_s += there_s + back_s
        assert abs(reading.offset_s + 20.0) <= reading.error_s + 1e-12


def test_one_question_at_a_time_and_a_pause_after_each_round() -> None:
    probe = ClockProbe()
    assert probe.ask(0.0)
    assert not probe.ask(1.0)
    assert probe.ask(6.0)  # the first was lost
    assert probe.take(0.0, 0.0, 6.1) is None  # and comes too late
    reading, now_s = probe.take(6.0, 6.0, 6.1), 7.0
    while reading is None:
        assert probe.ask(now_s)
        reading = answer(probe, now_s, ahead_s=0.0, there_s=0.01, back_s=0.01)
        now_s += 0.1
    assert not probe.ask(now_s + 1.0)
    assert probe.ask(now_s + 6.0)
