from __future__ import annotations

import pytest

from phalanx.errors import ExitCode, TimeoutExpired
from phalanx.wire.deadline import Deadline, IdleDeadline


def test_an_expired_deadline_says_what_was_waited_for() -> None:
    deadline = Deadline.after(0.0, "the moon to rise")
    assert deadline.expired
    with pytest.raises(TimeoutExpired, match=r"^waited 0 s for the moon to rise, then gave up$"):
        deadline.check()
    error = deadline.error()
    assert error.facts == {"activity": "the moon to rise", "limit_s": 0.0}
    assert error.exit_code is ExitCode.DEADLINE


def test_an_open_deadline_lets_pass() -> None:
    deadline = Deadline.after(1000.0, "nothing")
    deadline.check()
    assert not deadline.expired
    assert 0 < deadline.remaining_s <= 1000.0
    assert 0 < deadline.remaining_ms <= 1_000_001


def test_what_remains_is_never_negative() -> None:
    deadline = Deadline.after(-5.0, "yesterday")
    assert deadline.remaining_s == 0.0
    assert deadline.remaining_ms == 0


def test_milliseconds_are_rounded_up_so_that_a_poll_does_not_spin() -> None:
    deadline = Deadline(activity="a blink", limit_s=1.0, at=Deadline.after(1000.0, "").at)
    assert deadline.remaining_ms > deadline.remaining_s * 1000 - 1
    assert isinstance(deadline.remaining_ms, int)


def test_an_expired_deadline_names_the_setting_that_it_comes_from() -> None:
    deadline = Deadline.after(0.0, "the servers", setting="deadlines.exchange_s")
    with pytest.raises(TimeoutExpired, match=r"gave up; deadlines\.exchange_s sets how long$"):
        deadline.check()


def test_an_idle_deadline_counts_only_the_time_in_which_nothing_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("phalanx.wire.deadline.time.monotonic", lambda: now)
    moving = True
    deadline = IdleDeadline(
        60.0, "the servers", setting="deadlines.exchange_s", is_moving=lambda: moving
    )
    for _ in range(10):
        now += 59.0
        deadline.check()  # ten minutes in all, and never a minute without movement
    moving = False
    now += 59.0
    deadline.check()
    now += 2.0
    with pytest.raises(TimeoutExpired, match=r"waited 60 s for the servers.*exchange_s"):
        deadline.check()
