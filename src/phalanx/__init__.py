"""Phalanx trains neural networks across the ordinary machines that people already have.

>>> import phalanx
>>> summary = phalanx.train({"data": "digits", "epochs": 3, "workers": 2})  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from phalanx._version import __version__

if TYPE_CHECKING:
    from phalanx.integrations.keras import fit
    from phalanx.launch.fork_server import warm_workers
    from phalanx.notebook.run import open_run, resume, train
    from phalanx.program.current import session
    from phalanx.spec.job import JobSpec
    from phalanx.spec.loader import load_job

__all__ = [
    "JobSpec",
    "__version__",
    "fit",
    "load_job",
    "open_run",
    "resume",
    "session",
    "train",
    "warm_workers",
]

_HOMES = {
    "train": "phalanx.notebook.run",
    "resume": "phalanx.notebook.run",
    "fit": "phalanx.integrations.keras",
    "load_job": "phalanx.spec.loader",
    "JobSpec": "phalanx.spec.job",
    "open_run": "phalanx.notebook.run",
    "session": "phalanx.program.current",
    "warm_workers": "phalanx.launch.fork_server",
}


def __getattr__(name: str) -> object:
    """Load the public names on first use: `import phalanx` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, for completion in a shell or notebook."""
    return __all__
