"""Scripted processes, no real ones: when is a group that needs all its workers finished or lost?"""

from __future__ import annotations

from phalanx.control.coordinator import Identity
from phalanx.control.failure_policy import ProcessFacts, ReportedError
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.records.events import Event
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import EpochReport, FromController

HEARTBEAT_S = 5.0


class SilentDesk:
    def send(self, process: str, message: FromController) -> None: ...

    def record(self, event: Event) -> None: ...

    def announce(self, report: EpochReport) -> None: ...

    def identity(self, process: str) -> Identity:
        raise AssertionError("nobody is replaced here")


def coordinator() -> SynchronousCoordinator:
    deadlines = {"heartbeat_s": HEARTBEAT_S}
    job = job_from_mapping({"workers": 2, "deadlines": deadlines})
    return SynchronousCoordinator(job, SilentDesk())


def worker(
    rank: int,
    *,
    done: bool = False,
    silent_s: float = 0.0,
    exit_code: int | None = None,
    error: ReportedError | None = None,
) -> ProcessFacts:
    return ProcessFacts(
        process=f"worker-{rank}",
        joined=True,
        done=done,
        silent_s=silent_s,
        age_s=60.0,
        exit_code=exit_code,
        error=error,
    )


def test_there_is_one_process_per_worker() -> None:
    assert [process.name for process in coordinator().processes()] == ["worker-0", "worker-1"]


def test_the_run_is_finished_when_all_are_done_and_gone() -> None:
    gone = [worker(rank, done=True, exit_code=0) for rank in range(2)]
    assert coordinator().judge(gone).finished
    leaving = [gone[0], worker(1, done=True)]
    verdict = coordinator().judge(leaving)
    assert (verdict.finished, verdict.failure) == (False, None)


def test_a_worker_that_is_done_is_not_frozen_while_others_still_work() -> None:
    verdict = coordinator().judge([worker(0), worker(1, done=True, silent_s=2 * HEARTBEAT_S)])
    assert (verdict.finished, verdict.failure) == (False, None)


def test_a_worker_that_cannot_leave_does_not_hold_up_the_end() -> None:
    stuck = worker(1, done=True, silent_s=2 * HEARTBEAT_S)
    assert coordinator().judge([worker(0, done=True, exit_code=0), stuck]).finished


def test_a_silent_worker_that_is_not_done_is_frozen() -> None:
    verdict = coordinator().judge([worker(0, done=True), worker(1, silent_s=2 * HEARTBEAT_S)])
    assert verdict.failure is not None
    assert verdict.failure.process == "worker-1"


def test_a_worker_that_breaks_on_its_way_out_is_a_failure() -> None:
    verdict = coordinator().judge([worker(0, done=True), worker(1, done=True, exit_code=-11)])
    assert not verdict.finished
    assert verdict.failure is not None
    assert "SIGSEGV" in verdict.failure.cause


def test_a_first_complaint_is_not_yet_the_cause() -> None:
    lost_peer = ReportedError("PeerError", "a peer is gone", "", 4)
    verdict = coordinator().judge([worker(0, exit_code=4, error=lost_peer), worker(1)])
    assert (verdict.finished, verdict.failure) == (False, None)
