from __future__ import annotations

import time
from dataclasses import dataclass

from phalanx.strategy.allreduce import OverlapMeter
from support.waiting import wait_until


@dataclass
class Exchange:
    """One that ends when it is told to."""

    done: bool = False

    def wait(self) -> None:
        assert self.done

    def is_done(self) -> bool:
        return self.done


def compute(seconds: float) -> float:
    begin = time.perf_counter()
    wait_until(lambda: time.perf_counter() - begin > seconds, "backward")
    return time.perf_counter() - begin


def test_what_is_on_its_way_counts_in_full_and_what_has_arrived_half() -> None:
    overlap = OverlapMeter()
    overlap.begin()
    compute(0.02)
    overlap.look([])
    first, second = Exchange(), Exchange()
    alone_s = compute(0.05)
    overlap.look([first])
    both_s = compute(0.05)
    first.done = second.done = True
    overlapped_s = overlap.end([first, second])
    assert alone_s + both_s / 2 <= overlapped_s <= 1.2 * (alone_s + both_s / 2) + 0.01


def test_a_step_without_exchanges_overlaps_nothing_and_each_begins_anew() -> None:
    overlap = OverlapMeter()
    overlap.begin()
    assert overlap.end([]) == 0.0
    overlap.begin()
    overlap.look([])
    compute(0.02)
    assert overlap.end([Exchange()]) >= 0.02
    overlap.begin()
    assert overlap.end([]) == 0.0
