"""Run a worker whose training code is the user's script."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from phalanx.comm.base import Collective
from phalanx.errors import SpecError
from phalanx.program.current import set_session
from phalanx.program.driver import LaunchedDriver
from phalanx.program.keras_hook import shared_fit
from phalanx.program.model import ScriptModel
from phalanx.program.network_record import record_script_network
from phalanx.program.output import relay_output
from phalanx.program.own_stream import OwnStream, check_strategy
from phalanx.program.script import Script, ScriptEnded, run_file
from phalanx.program.seeds import session_seed
from phalanx.program.served_role import is_served, run_served
from phalanx.program.session import Declared, ScriptSession
from phalanx.program.several import attach_strategy
from phalanx.program.source import BatchCut, seed_all
from phalanx.program.stall_watch import StallWatch
from phalanx.program.taps import tapped_backward, tapped_clipping
from phalanx.program.trainer import ScriptTrainer, describe_data
from phalanx.program.trial import locate_script, record_script, trial_end, trial_job
from phalanx.program.turn import LossScale, start_sum
from phalanx.program.turns import ScriptTurns
from phalanx.records.events import Warned
from phalanx.spec.program import PRECISION, complete_job
from phalanx.wire.messages import Done
from phalanx.wire.program import ScriptDeclared, ScriptPrinted
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.context import WorkerContext
from phalanx.worker.groups import join_group
from phalanx.worker.loop import TrainLoop
from phalanx.worker.torch_trainer import TrainSetup


def run_program(context: WorkerContext) -> Done:
    """Run the script up to its loop, then train with it to the end of the job.

    Raises:
        SpecError: The script has no session, or declares something that cannot be trained.
        EngineError: The script fails, or leaves its loop.
    """
    spec, program = context.spec, context.job.program
    assert program is not None
    torch.set_num_threads(spec.threads)
    context.metrics.activity = f"running {program.name}"
    context.metrics.has_classes = False
    # A server runs the script up to its loop, to know its model; it is no worker of it.
    rank = spec.rank if spec.role == "worker" else context.job.workers + spec.rank
    driver = LaunchedDriver(BatchCut.of(context.job, rank))
    session = ScriptSession(driver)
    script = driver.script = Script(
        lambda: run_file(locate_script(context), program.args), name=program.name
    )
    seed_all(context.job.seed)
    set_session(session)
    taps = tapped_backward(driver.backward), tapped_clipping(driver.clip)
    with relay_output(context), taps[0], taps[1], shared_fit():
        request = script.resume()
        if isinstance(request, ScriptEnded):
            raise SpecError(_no_loop(program.name, session))
        driver.seed = session_seed()
        stream = _stream_without_length(context, session.declared)
        if stream is None:
            context = _declare(context, session.declared, driver.seed)
        watch = StallWatch(program.name, lambda text: _tell(context, text))
        if is_served(context.job):
            with watch.watching():
                return run_served(context, session, driver, watch)
        context.metrics.activity = "joining"
        driver.collective = collective = join_group(context)
        try:
            if stream is not None:
                _agree_on_length(stream, collective)
                context = _declare(context, session.declared, driver.seed)
            with watch.watching():
                return _train(context, session, driver, collective, watch)
        finally:
            collective.close()


def _tell(context: WorkerContext, text: str) -> None:
    """Tell the user and the records that this worker holds up the others."""
    if context.job.workers > 1:
        text = f"{context.spec.process} {text}"
        context.log.record(Warned(message=text))
        context.control.send(ScriptPrinted(text))


def _no_loop(name: str, session: ScriptSession) -> str:
    if not session.declared.setups and session.declared.data is None:
        return (
            f"{name} ended without a session; call phalanx.session() in it, declare its model by "
            "session.setup() and its data by session.data(), and loop over these"
        )
    return f"{name} ended before its loop over session.data() began"


def _stream_without_length(context: WorkerContext, declared: Declared) -> OwnStream | None:
    """Return the worker's own stream, if its length is for all workers to agree on."""
    source = declared.source
    if not isinstance(source, OwnStream):
        return None
    check_strategy(context.job.strategy)
    return None if source.has_steps else source


def _agree_on_length(stream: OwnStream, collective: Collective) -> None:
    longest = torch.tensor([float(stream.num_batches)])
    collective.all_reduce(longest, "max")
    stream.agree(int(longest.item()))


def _declare(context: WorkerContext, declared: Declared, seed: int) -> WorkerContext:
    """Tell the controller what the script has declared, and complete the job by it."""
    source = declared.source
    named = [
        (name, tuple(p.shape))
        for one in declared.setups
        for name, p in one.model.named_parameters()
        if p.requires_grad
    ]
    message = ScriptDeclared(
        epochs=declared.epochs or 1,
        global_batch=source.batch_size * declared.accumulate,
        num_samples=source.num_samples,
        num_parameters=sum(torch.Size(shape).numel() for _, shape in named),
        digest=hashlib.sha256(repr(named).encode()).hexdigest()[:16],
        order=source.digest(seed),
    )
    context.control.send(message)
    job = complete_job(context.job, epochs=message.epochs, global_batch=message.global_batch)
    job = trial_job(job, message.num_samples)
    return replace(context, spec=context.spec.model_copy(update={"job": job}))


def _train(
    context: WorkerContext,
    session: ScriptSession,
    driver: LaunchedDriver,
    collective: Collective,
    watch: StallWatch,
) -> Done:
    declared, job = session.declared, context.job
    assert declared.data is not None
    first = declared.setups[0]
    scale = LossScale(
        loss=first.loss,
        count=declared.data.count,
        total=start_sum(collective),
        # Workers that update by themselves need not know of each other's samples.
        own_streams=declared.data.own is not None and not job.strategy.applies_before_exchange,
    )
    is_one = len(declared.setups) == 1
    turns = ScriptTurns(driver.script, scale, watch, passes=first.passes if is_one else None)
    model = ScriptModel(declared.setups, turns, bucket_bytes=job.strategy.bucket_size)
    driver.model = model
    record_script_network(context, model)
    strategy = attach_strategy(job.strategy, model.replicas, collective, turns=turns)
    startup_s = context.record_start(PRECISION, "the script decides")
    name = driver.script.name
    setup = TrainSetup(
        describe_data(name, declared.source.num_samples), model, strategy, collective
    )
    checkpointer = AsyncCheckpointer(Checkpoints(context.store, job.checkpoint), context.log)
    trainer = ScriptTrainer(
        context, setup, checkpointer, session=session, turns=turns, seed=driver.seed
    )
    loop = TrainLoop(context, trainer)
    if context.spec.resume is not None:
        loop.restore()
    limit = trial_end(job, declared.source.num_samples)
    loop.advance(limit)
    if limit is not None:
        driver.script.abandon()
    outcome = loop.conclude(precision=PRECISION, startup_s=startup_s)
    if context.spec.rank == 0:
        state = first.optimizer.state
        moments = next((list(kept.values()) for kept in state.values()), [])
        held = next((one.numel() for one in state), 0)
        record_script(context, declared, turns, moments, num_parameters=held)
    return Done(times=loop.times(), outcome=outcome)
