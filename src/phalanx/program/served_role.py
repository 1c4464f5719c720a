"""Run a process of a run with parameter servers that trains by the user's script."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from torch import Tensor

from phalanx.consistency.rule import rule_for
from phalanx.engine.torch_rule import BEGUN, NAMED
from phalanx.errors import EngineError
from phalanx.program.driver import LaunchedDriver
from phalanx.program.network_record import record_script_network
from phalanx.program.served import ScriptServedWorker
from phalanx.program.served_model import (
    ServedModel,
    ServedWeights,
    check_served,
    check_switched,
)
from phalanx.program.session import ScriptSession
from phalanx.program.stall_watch import StallWatch
from phalanx.program.switching import ScriptSwitchingWorker
from phalanx.program.tickets import counted_samples
from phalanx.program.trainer import describe_data
from phalanx.program.trial import record_script
from phalanx.program.turns import ScriptTurns
from phalanx.spec.job import JobSpec
from phalanx.spec.program import PRECISION
from phalanx.wire.messages import Done
from phalanx.worker.checkpoint import NEWEST, Checkpoints
from phalanx.worker.checkpoint.state import REPLICA
from phalanx.worker.context import WorkerContext
from phalanx.worker.parameter_server.server import first_start, serve
from phalanx.worker.replica import TrainResources
from phalanx.worker.switch.worker import help_in_phases

_REASON = "the script decides"


def is_served(job: JobSpec) -> bool:
    """Return whether servers make a script's updates, or its strategy changes on the way."""
    strategies = job.strategy.strategies()
    return len(strategies) > 1 or strategies[0].updates_on_servers


def run_served(
    context: WorkerContext, session: ScriptSession, driver: LaunchedDriver, watch: StallWatch
) -> Done:
    """Serve a slice of the script's model, or compute tickets, until the job is done.

    Raises:
        SpecError: The script has declared what servers cannot do.
    """
    declared, job = session.declared, context.job
    check_served(declared)
    _refuse_other_state(context)
    switches = len(job.strategy.strategies()) > 1
    if switches:
        check_switched(declared)
    turns = ScriptTurns(driver.script, ServedWeights(declared, in_rounds=True), watch, passes=None)
    model = ServedModel(
        declared.setups,
        turns,
        bucket_bytes=job.strategy.bucket_size,
        is_alone=job.workers == 1,
        steps=switches,
    )
    samples = counted_samples(declared.source)
    dataset = describe_data(driver.script.name, samples)
    basis = TrainResources(dataset, PRECISION, model, model.factory)
    if context.spec.role == "server":
        return _serve(context, basis, switches=switches)
    driver.model = model
    record_script_network(context, model)
    with ExitStack() as stack:
        if switches:
            startup_s = context.record_start(PRECISION, _REASON)
            done = ScriptSwitchingWorker(
                context,
                basis,
                stack,
                startup_s=startup_s,
                session=session,
                turns=turns,
                driver=driver,
            ).run()
            assert model.optimizer is not None
            _record(context, session, turns, model, model.optimizer.state())
            return done
        in_rounds = rule_for(context.serving).in_rounds(job.workers)
        turns.scale = ServedWeights(declared, in_rounds=in_rounds, is_alone=job.workers == 1)
        worker = ScriptServedWorker(
            context,
            basis,
            stack,
            start=first_start(context),
            session=session,
            turns=turns,
            seed=driver.seed,
            in_rounds=in_rounds,
        )
        worker.run(on_start=lambda: context.record_start(PRECISION, _REASON))
        _record(context, session, turns, model, worker.optimizer)
        return worker.finish()


def _record(
    context: WorkerContext,
    session: ScriptSession,
    turns: ScriptTurns,
    model: ServedModel,
    state: Mapping[str, Tensor],
) -> None:
    if context.spec.rank == 0:
        size = model.parameters.numel()
        record_script(context, session.declared, turns, state.values(), num_parameters=size)


def _refuse_other_state(context: WorkerContext) -> None:
    """Refuse a checkpoint in which the script's own optimiser holds its state.

    Raises:
        EngineError: The run was trained without servers.
    """
    if context.spec.resume is None:
        return
    checkpoints = Checkpoints(context.store, context.job.checkpoint)
    begun = [f"{REPLICA}optimizer/{name}" for name in (BEGUN, f"{NAMED}0:{BEGUN}")]
    found = checkpoints.load(NEWEST, only=begun)
    if found is not None and not found.tensors:
        raise EngineError(
            "the run was trained without parameter servers, so that the script's optimiser has "
            "its state, in a form that servers do not take; resume it without them, or begin anew "
            "from its weights by phalanx.open_run(RUN).load_into(model)"
        )


def _serve(context: WorkerContext, basis: TrainResources, *, switches: bool) -> Done:
    context.metrics.activity = "serving"
    if not switches:
        return serve(context, basis, first_start(context))
    return help_in_phases(
        context,
        basis.dataset.epoch_samples,
        lambda phase, start: serve(phase, basis, start),
    )
