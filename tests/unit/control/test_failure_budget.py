from __future__ import annotations

from phalanx.control.failure_budget import FailureBudget
from phalanx.control.failure_policy import ProcessFailure
from phalanx.errors import ExitCode
from phalanx.spec.strategy import FailureLimit

HOUR_S = 3600.0


def lost(process: str = "worker-0") -> ProcessFailure:
    return ProcessFailure(process, f"{process} was killed", ExitCode.FAILED)


def test_more_losses_than_allowed_end_the_run_and_name_the_settings() -> None:
    budget = FailureBudget(FailureLimit(2, HOUR_S))
    assert budget.note(lost(), 0.0) is None
    assert budget.note(lost("worker-1"), 1.0) is None
    given_up = budget.note(lost("server-0"), 2.0)
    assert given_up is not None
    assert given_up.cause == (
        "server-0 was killed; that is loss number 3 within 3600 s (strategy.failure_window_s), and "
        "strategy.max_failures allows 2"
    )
    assert given_up.exit_code is ExitCode.WORKER_LOST


def test_a_run_of_a_month_may_lose_a_process_every_hour() -> None:
    budget = FailureBudget(FailureLimit(10, HOUR_S))
    assert not any(budget.note(lost(), hour * HOUR_S) for hour in range(24 * 30))


def test_none_allowed_means_none() -> None:
    assert FailureBudget(FailureLimit(0, HOUR_S)).note(lost(), 0.0) is not None


def test_a_crash_loop_is_slowed_down_and_others_are_not() -> None:
    budget = FailureBudget(FailureLimit(100, HOUR_S))
    delays = []
    for _ in range(8):
        budget.note(lost(), 0.0)
        delays.append(budget.delay_s("worker-0"))
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    budget.note(lost("worker-1"), 0.0)
    assert budget.delay_s("worker-1") == 0.0


def test_what_was_forgotten_delays_nothing() -> None:
    budget = FailureBudget(FailureLimit(100, HOUR_S))
    for _ in range(5):
        budget.note(lost(), 0.0)
    budget.note(lost(), HOUR_S)
    assert budget.delay_s("worker-0") == 0.0
