"""Run the role of a process under the job's strategy; called by the bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from phalanx.engine.memory import keep_freed_memory
from phalanx.spec.kinds import kind_of
from phalanx.spec.registry import load
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext

PROGRAM_ROLE = "phalanx.program.role:run_program"
"""Body of every process of a run of the user's script."""

ELASTIC_ROLE = "phalanx.worker.elastic.worker:run_elastic_worker"
"""Body of every worker of a run that may lose some."""


def run_role(context: WorkerContext) -> Done:
    """Run this process's role to its end.

    Raises:
        SpecError: The strategy has no such role, or its code cannot be imported.
    """
    keep_freed_memory()
    kind = kind_of(context.job.strategy)
    path = kind.role(context.spec.role) if context.job.program is None else PROGRAM_ROLE
    if context.job.elastic is not None:
        path = ELASTIC_ROLE
    return cast(Callable[[WorkerContext], Done], load(path))(context)
