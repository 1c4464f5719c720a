"""Coordinate processes that run the user's script: learn from it what a job file would say.

The strategy's own coordinator does everything else. It is made again, of the completed job, when
the first process has declared: until then no process has said anything to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import Awaited, ControllerApi, Coordinator, Process
from phalanx.control.failure_policy import ProcessFacts, ProcessFailure, RunVerdict
from phalanx.errors import ExitCode
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.spec.kinds import kind_of
from phalanx.spec.program import complete_job
from phalanx.spec.registry import load
from phalanx.wire.messages import FromWorker, RunOutcome
from phalanx.wire.program import ScriptDeclared, ScriptPrinted

_WORDS = {
    "epochs": "epochs",
    "global_batch": "samples per update",
    "num_samples": "samples per epoch",
    "num_parameters": "parameters",
    "digest": "parameters, by name and shape",
    "order": "orders of samples",
}


class ScriptCoordinator(Coordinator):
    """Coordinate processes whose script must declare the same on all of them.

    Args:
        job: The job, without what its script says.
        api: Acts.
        found: Position of the checkpoint to resume; None: the run begins.
    """

    def __init__(self, job: JobSpec, api: ControllerApi, found: Position | None) -> None:
        self._job = job
        self._api = api
        self._found = found
        self._declared: dict[str, ScriptDeclared] = {}
        self._difference: ProcessFailure | None = None
        self._has_begun = False
        self._follow(job)

    def _follow(self, job: JobSpec) -> None:
        """Leave the run to the coordinator of the job's strategy."""
        kind = cast(type[Coordinator], load(kind_of(job.strategy).coordinator))
        self._strategy = kind.begin(job, self._api, self._found)
        self.times, self.switches = self._strategy.times, self._strategy.switches

    @classmethod
    @override
    def begin(cls, job: JobSpec, api: ControllerApi, found: Position | None) -> ScriptCoordinator:
        return cls(job, api, found)

    @property
    @override
    def serving(self) -> ServingSummary | None:
        return self._strategy.serving

    @property
    @override
    def can_shrink(self) -> bool:
        return self._strategy.can_shrink

    @override
    def processes(self) -> Sequence[Process]:
        return self._strategy.processes()

    @override
    def take(self, process: str, message: FromWorker) -> None:
        if isinstance(message, ScriptPrinted):
            self._api.show(message.text)
        elif isinstance(message, ScriptDeclared):
            self._take_declaration(process, message)
        else:
            self._strategy.take(process, message)

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        if self._difference is not None:
            return RunVerdict(failure=self._difference)
        return self._strategy.judge(processes)

    @override
    def awaited(self) -> Sequence[Awaited]:
        return self._strategy.awaited()

    @override
    def left(self, process: str) -> None:
        self._declared.pop(process, None)
        self._strategy.left(process)

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        # A script has been told how many workers there are.
        return ()

    @override
    def begin_next_phase(self, cause: str) -> bool:
        return self._strategy.begin_next_phase(cause)

    @override
    def outcome(self) -> RunOutcome:
        outcome = self._strategy.outcome()
        self.times = self._strategy.times
        return outcome

    def _take_declaration(self, process: str, message: ScriptDeclared) -> None:
        if not self._has_begun:
            self._has_begun = True
            job = complete_job(self._job, epochs=message.epochs, global_batch=message.global_batch)
            self._api.declare(job)
            self._follow(job)
        for other, before in self._declared.items():
            what = _difference(before, message)
            if what is not None and self._difference is None:
                name = self._job.program.name if self._job.program is not None else ""
                self._difference = ProcessFailure(
                    process,
                    f"{name} differs between workers: {process} and {other} have declared "
                    f"{what}; a script must declare the same on all, so seed what it draws and "
                    "read the same files",
                    ExitCode.BAD_INPUT,
                )
        self._declared[process] = message


def _difference(one: ScriptDeclared, other: ScriptDeclared) -> str | None:
    mine, yours = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    for name, words in _WORDS.items():
        if mine[name] != yours[name]:
            is_number = isinstance(mine[name], int)
            return f"{yours[name]} and {mine[name]} {words}" if is_number else f"different {words}"
    return None
