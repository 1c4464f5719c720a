"""Run a process of `backend: tensorflow`.

TensorFlow is imported only here: the environment has to be prepared first, and a machine without it
must report that.
"""

from __future__ import annotations

from phalanx.backends.tensorflow.environment import prepare_environment
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext


def run_tensorflow_role(context: WorkerContext) -> Done:
    """Run this process's role to its end."""
    prepare_environment()
    from phalanx.backends.tensorflow.phase import run_phase

    return run_phase(context)
