"""Which backend does a process's part; called by the bootstrap once channel and log are ready.

Each backend is imported only for its own jobs: a process never holds two frameworks.
"""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext


def run_role(station: WorkerContext) -> Done:
    """Do this process's part of the run, to its end."""
    match station.job.backend:
        case "tensorflow":
            from phalanx.peer.tensorflow.roles import run_tensorflow_role

            return run_tensorflow_role(station)
        case "ddp":
            from phalanx.peer.ddp.roles import run_ddp_role

            return run_ddp_role(station)
        case backend:
            raise SpecError(f"no process of this version runs backend '{backend}'")
