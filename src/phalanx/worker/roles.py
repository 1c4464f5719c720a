"""Dispatch a process to its role; called by the bootstrap once channel and log are ready."""

from __future__ import annotations

from phalanx.engine.memory import keep_freed_memory
from phalanx.errors import SpecError
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.split import SplitSpec
from phalanx.spec.switch import SwitchSpec
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext
from phalanx.worker.parameter_server.evaluator import run_evaluator
from phalanx.worker.parameter_server.server import run_server
from phalanx.worker.parameter_server.worker import run_parameter_server_worker
from phalanx.worker.split import run_split_worker
from phalanx.worker.switch.worker import run_switching_helper, run_switching_worker
from phalanx.worker.synchronous import run_lockstep_worker


def run_role(context: WorkerContext) -> Done:
    """Run this process's part of the run, to its end."""
    keep_freed_memory()
    serving = isinstance(context.job.strategy, ParameterServerSpec)
    switching = isinstance(context.job.strategy, SwitchSpec)
    splitting = isinstance(context.job.strategy, SplitSpec)
    match context.spec.role:
        case "worker" if switching:
            return run_switching_worker(context)
        case "server" | "evaluator" if switching:
            return run_switching_helper(context)
        case "worker" if serving:
            return run_parameter_server_worker(context)
        case "worker" if splitting:
            return run_split_worker(context)
        case "worker":
            return run_lockstep_worker(context)
        case "server":
            return run_server(context)
        case "evaluator":
            return run_evaluator(context)
        case role:
            raise SpecError(f"no process of this version has the role '{role}'")
