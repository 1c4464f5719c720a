"""Run the role of a process of another backend; called by the bootstrap once its log is ready.

Each backend is imported only for its own jobs: a process never holds two frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from phalanx.spec.backend import BACKENDS
from phalanx.spec.registry import load
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext


def run_role(context: WorkerContext) -> Done:
    """Run this process's role to its end."""
    kind = BACKENDS.find(context.job.backend)
    return cast("Callable[[WorkerContext], Done]", load(kind.role))(context)
