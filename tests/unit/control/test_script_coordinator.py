"""Workers whose script declares different things are named before they train."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.control.coordinator import Identity
from phalanx.control.script_coordinator import ScriptCoordinator
from phalanx.records.events import Event
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import EpochFigures, FromController, Progress
from phalanx.wire.program import ScriptDeclared, ScriptPrinted

DECLARED = ScriptDeclared(
    epochs=2, global_batch=64, num_samples=1000, num_parameters=10, digest="a", order="b"
)


class Desk:
    def __init__(self) -> None:
        self.jobs: list[JobSpec] = []
        self.shown: list[str] = []

    def send(self, process: str, message: FromController) -> None: ...

    def record(self, event: Event) -> None: ...

    def announce(self, report: EpochFigures) -> None: ...

    def declare(self, job: JobSpec) -> None:
        self.jobs.append(job)

    def show(self, text: str) -> None:
        self.shown.append(text)

    def progress(self, process: str) -> Progress:
        raise AssertionError("nobody asks")

    def learning_rate(self) -> float:
        raise AssertionError("nobody asks")

    def identity(self, process: str) -> Identity:
        raise AssertionError("nobody is replaced here")


def coordinator(desk: Desk, **program: object) -> ScriptCoordinator:
    job = job_from_mapping({"program": {"script": "train.py", **program}, "workers": 2})
    return ScriptCoordinator.begin(job, desk, None)


def test_the_script_completes_its_job() -> None:
    desk = Desk()
    both = coordinator(desk, shares=[3, 1])
    for rank in range(2):
        both.take(f"worker-{rank}", DECLARED)
    (job,) = desk.jobs
    assert (job.epochs, job.global_batch, job.batch.shares) == (2, 64, (3.0, 1.0))
    assert both.judge([]).failure is None
    both.take("worker-0", ScriptPrinted("epoch 1"))
    assert desk.shown == ["epoch 1"]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"num_samples": 1001}, "1001 and 1000 samples per epoch"),
        ({"epochs": 3}, "3 and 2 epochs"),
        ({"order": "c"}, "different orders of samples"),
        ({"digest": "c"}, "different parameters, by name and shape"),
    ],
)
def test_workers_that_read_or_build_other_things_are_named(
    other: dict[str, object], what: str
) -> None:
    both = coordinator(Desk())
    both.take("worker-0", DECLARED)
    both.take("worker-1", msgspec.structs.replace(DECLARED, **other))
    failure = both.judge([]).failure
    assert failure is not None
    assert f"worker-1 and worker-0 have declared {what};" in failure.cause
