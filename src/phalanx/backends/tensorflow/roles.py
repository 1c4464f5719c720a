"""What a process of `backend: tensorflow` does in its role.

TensorFlow is imported here and not before: the environment has to be prepared, and a machine
without it must say so.
"""

from __future__ import annotations

from phalanx.backends.tensorflow.environment import prepare_environment
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext


def run_tensorflow_role(context: WorkerContext) -> Done:
    """Do this process's part of the run, to its end."""
    prepare_environment()
    from phalanx.backends.tensorflow.phase import run_phase

    return run_phase(context)
