"""Choose the coordinator of a job: by its strategy, its backend, or its script."""

from __future__ import annotations

from typing import cast

from phalanx.control.backend_coordinator import BackendCoordinator
from phalanx.control.coordinator import Coordinator
from phalanx.control.elastic.coordinator import ElasticCoordinator
from phalanx.control.script_coordinator import ScriptCoordinator
from phalanx.spec.job import JobSpec
from phalanx.spec.kinds import kind_of
from phalanx.spec.registry import load


def coordinator_of(job: JobSpec) -> type[Coordinator]:
    """Return the class of the coordinator of a job."""
    if job.program is not None:
        return ScriptCoordinator
    if job.elastic is not None:
        return ElasticCoordinator
    if job.backend == "tensorflow":
        # TensorFlow has its own chief, whatever the strategy.
        return BackendCoordinator
    return cast(type[Coordinator], load(kind_of(job.strategy).coordinator))
