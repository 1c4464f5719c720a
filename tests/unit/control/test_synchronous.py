from __future__ import annotations

import pytest

from phalanx.control.coordinator import Identity
from phalanx.control.policy import ProcessFacts
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.errors import LaunchError
from phalanx.records.events import Event
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochDone, EpochReport, FromController

REPORT = EpochReport(
    epoch=0,
    samples=10,
    updates=1,
    train_loss=1.0,
    train_accuracy=0.5,
    val_loss=None,
    val_accuracy=None,
    lr=0.1,
    train_s=1.0,
)


class QuietDesk:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.announced: list[EpochReport] = []

    def send(self, process: str, message: FromController) -> None:
        raise AssertionError("a synchronous group organises itself")

    def record(self, event: Event) -> None:
        raise AssertionError("the workers write their own records")

    def announce(self, report: EpochReport) -> None:
        self.announced.append(report)

    def identity(self, process: str) -> Identity:
        raise AssertionError("nobody needs to know")


def facts(*, done: bool, exit_code: int | None) -> ProcessFacts:
    return ProcessFacts(
        "worker-0", joined=True, done=done, silent_s=0, age_s=1, exit_code=exit_code
    )


@pytest.fixture
def coordinator() -> SynchronousCoordinator:
    return SynchronousCoordinator(JobSpec(workers=3), QuietDesk())


def test_one_process_per_worker(coordinator: SynchronousCoordinator) -> None:
    assert [one.name for one in coordinator.processes()] == ["worker-0", "worker-1", "worker-2"]


def test_finished_when_all_are_done_and_gone(coordinator: SynchronousCoordinator) -> None:
    gone, leaving = facts(done=True, exit_code=0), facts(done=True, exit_code=None)
    assert coordinator.judge([gone, gone]).finished
    assert not coordinator.judge([gone, leaving]).finished


def test_epochs_are_announced() -> None:
    desk = QuietDesk()
    SynchronousCoordinator(JobSpec(), desk).take("worker-0", EpochDone(REPORT))
    assert desk.announced == [REPORT]


def test_nobody_is_replaced(coordinator: SynchronousCoordinator) -> None:
    with pytest.raises(LaunchError, match="worker-1 cannot be replaced"):
        coordinator.left("worker-1")
