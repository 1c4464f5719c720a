"""Describe jobs, pools and studies as immutable, validated, plain data.

Models with every default, readers of job files, and writers of resolved jobs. Nothing here builds
or imports what a spec describes, so this package loads without any framework; `strategy`, `engine`,
`data` and the rest map specs to implementations. Every other package may import it.

`load_job` and `job_from_mapping` load the YAML reader on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.spec.base import Spec
from phalanx.spec.data import BatchSpec, DataSpec
from phalanx.spec.inject import InjectSpec
from phalanx.spec.job import CheckpointSpec, DeadlineSpec, JobSpec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, OuterStepSpec, SingleSpec
from phalanx.spec.model import (
    CnnSpec,
    DensenetSpec,
    MlpSpec,
    MnistCnnSpec,
    ModelSpec,
    ResnetSpec,
    UserModelSpec,
)
from phalanx.spec.optimize import (
    AdadeltaSpec,
    AdagradSpec,
    AdamSpec,
    AdamwSpec,
    ConstantSpec,
    CosineSpec,
    EarlyStopSpec,
    LossSpec,
    MilestonesSpec,
    OptimizerSpec,
    ScheduleSpec,
    SgdSpec,
)
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import PhaseSpec, SwitchSpec

if TYPE_CHECKING:
    from phalanx.spec.loader import job_from_mapping, load_job

__all__ = [
    "AdadeltaSpec",
    "AdagradSpec",
    "AdamSpec",
    "AdamwSpec",
    "AllreduceSpec",
    "BatchSpec",
    "CheckpointSpec",
    "CnnSpec",
    "ConstantSpec",
    "CosineSpec",
    "DataSpec",
    "DeadlineSpec",
    "DensenetSpec",
    "EarlyStopSpec",
    "InjectSpec",
    "JobSpec",
    "LocalSgdSpec",
    "LossSpec",
    "MilestonesSpec",
    "MlpSpec",
    "MnistCnnSpec",
    "ModelSpec",
    "OptimizerSpec",
    "OuterStepSpec",
    "ParameterServerSpec",
    "PhaseSpec",
    "ResnetSpec",
    "ScheduleSpec",
    "SgdSpec",
    "SingleSpec",
    "Spec",
    "StrategySpec",
    "SwitchSpec",
    "UserModelSpec",
    "job_from_mapping",
    "load_job",
]


def __getattr__(name: str) -> object:
    if name in ("load_job", "job_from_mapping"):
        from phalanx.spec import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
