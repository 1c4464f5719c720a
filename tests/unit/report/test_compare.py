from __future__ import annotations

import pytest

from phalanx.report.compare import compare, time_shares
from support.scripted import make_summary


def test_shares_sum_to_one_and_applying_counts_as_compute() -> None:
    shares = time_shares(make_summary())
    assert shares == pytest.approx(
        {"input": 0.1, "compute": 0.6, "communication": 0.2, "waiting": 0.1}
    )


def test_a_run_without_steps_has_no_shares() -> None:
    idle = make_summary(input_s=0.0, compute_s=0.0, communication_s=0.0, wait_s=0.0, apply_s=0.0)
    assert time_shares(idle) == {}


def test_speed_is_relative_to_the_first_run() -> None:
    rows = compare(
        [
            make_summary(samples_per_s=1000.0),
            make_summary(strategy="allreduce", samples_per_s=1500.0, bytes_sent=330, updates=33),
        ]
    )
    assert [row.speed for row in rows] == [1.0, 1.5]
    assert rows[1].bytes_per_update == 10.0


def test_a_reference_without_speed_gives_no_ratio() -> None:
    rows = compare([make_summary(samples_per_s=0.0, updates=0), make_summary()])
    assert [row.speed for row in rows] == [None, None]
    assert rows[0].bytes_per_update == 0.0


def test_nothing_compares_to_nothing() -> None:
    assert compare([]) == []
