"""List the strategies and what implements each: the one table of strategies.

A strategy of another package is one more `StrategyKind`, named in a job file as
`package.module:NAME`, or by an entry point of the group `phalanx.strategies`. A synchronous one
needs a spec, a step and, to be planned, a predictor; the loop, the controller, checkpoints and
records of the built-ins serve it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from phalanx.errors import SpecError
from phalanx.spec.base import name_only
from phalanx.spec.lockstep import (
    AllreduceSpec,
    CentralStorageSpec,
    LocalSgdSpec,
    MirroredSpec,
    SingleSpec,
)
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.registry import ByName, Registry
from phalanx.spec.split import SplitSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec


@dataclass(frozen=True, kw_only=True)
class StrategyKind:
    """One kind of strategy: its settings, and import paths of what implements it.

    Paths are text (`package.module:name`), imported by `registry.load` in the process that uses
    them: the control plane never imports torch, and a worker never imports the planner.
    """

    name: str
    spec: type[StrategySpec]
    step: str = ""
    """`(spec) -> strategy.base.Strategy`: one training step; empty where the worker brings its own
    loop."""
    worker: str = "phalanx.worker.lockstep:run_lockstep_worker"
    """`(context) -> Done`: body of a worker process. The default trains with `step`."""
    server: str = ""
    """The same of a server process."""
    evaluator: str = ""
    """The same of the evaluator."""
    coordinator: str = "phalanx.control.synchronous:SynchronousCoordinator"
    """A `control.coordinator.Coordinator` class. The default lets workers synchronise by themselves
    and ends the run when one is lost."""
    predictor: str = ""
    """`(workers, spec, cluster) -> plan.result.Throughput | str`, the text saying why it
    cannot be predicted; empty: the planner cannot predict it."""

    def role(self, role: str) -> str:
        """Return the import path of what a process of this role does.

        Raises:
            SpecError: The strategy has no such processes.
        """
        path = {"worker": self.worker, "server": self.server, "evaluator": self.evaluator}.get(role)
        if not path:
            raise SpecError(f"no process of this version has the role '{role}'")
        return path


_PHASES, _SERVER, _EVALUATOR = (
    "phalanx.worker.switch.worker:run_switching_helper",
    "phalanx.worker.parameter_server.server:run_server",
    "phalanx.worker.parameter_server.evaluator:run_evaluator",
)

STRATEGIES = Registry(
    "strategy",
    StrategyKind,
    group="phalanx.strategies",
    built_in={
        kind.name: kind
        for kind in (
            StrategyKind(
                name="single",
                spec=SingleSpec,
                step="phalanx.strategy.base:Single",
                predictor="phalanx.plan.synchronous:predict_single",
            ),
            StrategyKind(
                name="allreduce",
                spec=AllreduceSpec,
                step="phalanx.strategy.allreduce:Allreduce",
                predictor="phalanx.plan.synchronous:predict_allreduce",
            ),
            StrategyKind(
                name="local_sgd",
                spec=LocalSgdSpec,
                step="phalanx.strategy.local_sgd:LocalSgd",
                predictor="phalanx.plan.synchronous:predict_local_sgd",
            ),
            StrategyKind(
                name="parameter_server",
                spec=ParameterServerSpec,
                worker="phalanx.worker.parameter_server.worker:run_parameter_server_worker",
                server=_SERVER,
                evaluator=_EVALUATOR,
                coordinator="phalanx.control.parameter_server.coordinator:ParameterServerCoordinator",
                predictor="phalanx.plan.parameter_server:predict_parameter_server",
            ),
            StrategyKind(
                name="switch",
                spec=SwitchSpec,
                worker="phalanx.worker.switch.worker:run_switching_worker",
                server=_PHASES,
                evaluator=_PHASES,
                coordinator="phalanx.control.switch.coordinator:SwitchCoordinator",
            ),
            StrategyKind(
                name="split",
                spec=SplitSpec,
                worker="phalanx.worker.split.worker:run_split_worker",
                predictor="phalanx.plan.split:predict_split",
            ),
            # Only `backend: tensorflow` runs these two, with its own roles.
            StrategyKind(name="mirrored", spec=MirroredSpec),
            StrategyKind(name="central_storage", spec=CentralStorageSpec),
        )
    },
)


def kind_of(spec: StrategySpec) -> StrategyKind:
    """Return the kind that a spec belongs to."""
    return STRATEGIES.find(spec.name)


def built_in_modules() -> tuple[str, ...]:
    """Name the modules that processes of built-in strategies import, for a fork server."""
    kinds = [STRATEGIES.find(name) for name in STRATEGIES.built_in]
    paths = {path for one in kinds for path in (one.step, one.worker, one.server, one.evaluator)}
    return tuple(sorted({path.partition(":")[0] for path in paths if path}))


StrategyField = Annotated[
    StrategySpec,
    ByName(
        tuple(STRATEGIES.find(name).spec for name in STRATEGIES.built_in), table=lambda: STRATEGIES
    ),
    BeforeValidator(name_only),
]
"""The type of a job's `strategy`."""
