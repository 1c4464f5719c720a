"""What a process of `backend: tensorflow` does in its role.

TensorFlow is imported here and not before: the environment has to be prepared, and a machine
without it must say so.
"""

from __future__ import annotations

from phalanx.peer.tensorflow.environment import prepare_environment
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext


def run_tensorflow_role(station: WorkerContext) -> Done:
    """Do this process's part of the run, to its end."""
    prepare_environment()
    from phalanx.peer.tensorflow.phase import run_phase

    return run_phase(station)
