"""Coordinate workers that run the user's script: learn from it what a job file would say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import ControllerApi
from phalanx.control.failure_policy import ProcessFacts, ProcessFailure, RunVerdict
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.errors import ExitCode
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.program import complete_job
from phalanx.wire.messages import FromWorker
from phalanx.wire.program import ScriptDeclared, ScriptPrinted

_WORDS = {
    "epochs": "epochs",
    "global_batch": "samples per update",
    "num_samples": "samples per epoch",
    "num_parameters": "parameters",
    "digest": "parameters, by name and shape",
    "order": "orders of samples",
}


class ScriptCoordinator(SynchronousCoordinator):
    """Coordinate a group of workers whose script must declare the same on all of them."""

    def __init__(self, job: JobSpec, api: ControllerApi) -> None:
        super().__init__(job, api)
        self._declared: dict[str, ScriptDeclared] = {}
        self._difference: ProcessFailure | None = None

    @classmethod
    @override
    def begin(cls, job: JobSpec, api: ControllerApi, found: Position | None) -> ScriptCoordinator:
        return cls(job, api)

    @override
    def take(self, process: str, message: FromWorker) -> None:
        if isinstance(message, ScriptPrinted):
            self._api.show(message.text)
        elif isinstance(message, ScriptDeclared):
            self._take_declaration(process, message)
        else:
            super().take(process, message)

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        if self._difference is not None:
            return RunVerdict(failure=self._difference)
        return super().judge(processes)

    def _take_declaration(self, process: str, message: ScriptDeclared) -> None:
        if not self._declared:
            self._api.declare(
                complete_job(self._job, epochs=message.epochs, global_batch=message.global_batch)
            )
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
