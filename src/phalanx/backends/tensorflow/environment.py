"""Set what TensorFlow and Keras only read from the environment.

Called once by the roles, before either is imported.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from phalanx.errors import SpecError

_SETTINGS = {
    "KERAS_BACKEND": "tensorflow",
    # Errors only: the rest is about instruction sets and GPUs that a CPU build does not have.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # The port is held by our socket until TensorFlow's server has it: see `rendezvous`.
    "TF_GRPC_REUSE_PORT": "1",
}


def prepare_environment() -> None:
    """Set what TensorFlow reads when it is imported.

    Raises:
        SpecError: It is not installed; the text names the extra.
    """
    for module in ("tensorflow", "keras"):
        if find_spec(module) is None:
            raise SpecError(
                f"backend tensorflow needs a package that is not installed ({module}); "
                "get it with: pip install 'phalanx[tensorflow]'"
            )
    os.environ.update(_SETTINGS)


def publish_cluster(tf_config: str) -> None:
    """Set TF_CONFIG: the cluster, and this process's place in it."""
    os.environ["TF_CONFIG"] = tf_config
