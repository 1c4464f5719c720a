"""Run one phase of a TensorFlow run, from the rendezvous to the result, by role.

A process exists for one phase; a job without a switch has one. The controller names where the phase
begins and ends.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec
import tensorflow as tf

from phalanx.backends.tensorflow.checkpoints import NetworkCheckpoints
from phalanx.backends.tensorflow.chief import TicketLoop
from phalanx.backends.tensorflow.cluster_worker import cluster_names, run_cluster_worker
from phalanx.backends.tensorflow.dispatch import TicketDispatcher
from phalanx.backends.tensorflow.environment import publish_cluster
from phalanx.backends.tensorflow.evaluator import run_evaluator
from phalanx.backends.tensorflow.group import form_group
from phalanx.backends.tensorflow.lockstep import LockstepTrainer, ReplicaBatch
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.rendezvous import exchange_addresses
from phalanx.data.pipeline import Dataset
from phalanx.errors import EngineError, PeerError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.switch import phase_job
from phalanx.wire.messages import Done, PhaseOver
from phalanx.wire.relay import ProcessNote
from phalanx.wire.switch import BeginPhase, PhaseBegun, PhaseIdle
from phalanx.worker.checkpoint import NEWEST
from phalanx.worker.context import WorkerContext
from phalanx.worker.loop import TrainLoop
from phalanx.worker.rate import Ramp, ramp_into
from phalanx.worker.run_state import RunState

# Prefixes of lines in its errors that name a location, not the problem.
_UNTELLING = ("Graph execution error", "Detected at", "File ", "<stack traces", "[[", "at ")
# Errors that TensorFlow raises when another process is gone.
_LOST_PEER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def run_phase(context: WorkerContext) -> Done:
    """Run this process's role in the phase that the controller names."""
    # Its reports on every settings object would bury the rest of the log.
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _limit_threads(context)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    context.control.send(PhaseIdle(dataset.train.num_samples))
    begin = _await_begin(context)
    ramp = None
    if context.job.strategy.resolved:
        ramp = ramp_into(context.job, msgspec.json.decode(begin.position, type=Position))
        job = phase_job(context.job, begin.phase)
        context = replace(context, spec=context.spec.model_copy(update={"job": job}))
    try:
        return _run_role(context, dataset, begin, ramp)
    except _LOST_PEER as error:
        raise PeerError(f"TensorFlow lost a peer: {_first_line(error)}") from error
    except tf.errors.OpError as error:
        raise EngineError(f"TensorFlow failed: {_first_line(error)}") from error


def _await_begin(context: WorkerContext) -> BeginPhase:
    # Waits until Begin or the end of this process: the lifelines end it.
    early = []
    while not isinstance(word := context.control.inbox.get(), BeginPhase):
        early.append(word)
    # Messages of other processes may overtake Begin; the role reads them from the inbox.
    for one in early:
        context.control.inbox.put(one)
    return word


def _run_role(
    context: WorkerContext, dataset: Dataset, begin: BeginPhase, ramp: Ramp | None
) -> Done:
    if not context.job.strategy.updates_on_servers:
        return _run_lockstep(context, dataset, begin)
    match context.spec.role:
        case "chief":
            return _run_chief(context, dataset, begin, ramp)
        case "evaluator":
            return run_evaluator(context, dataset)
        case _:
            return run_cluster_worker(context, dataset, begin)


def _run_lockstep(context: WorkerContext, dataset: Dataset, begin: BeginPhase) -> Done:
    job, spec = context.job, context.spec
    context.metrics.activity = "joining"
    if job.worker_processes > 1:
        names = [f"worker-{rank}" for rank in range(job.worker_processes)]
        tf_config, port = exchange_addresses(context, names, group=begin.group)
        publish_cluster(tf_config)
        group = form_group(job, rank=spec.rank)
        # Only now: TensorFlow's server shares the port, so no other process could take it.
        port.close()
    else:
        group = form_group(job, rank=spec.rank)
    tf.random.set_seed(job.seed + spec.rank)
    position = msgspec.json.decode(begin.position, type=Position)
    network = Network(job, dataset, group.strategy, learns=True)
    startup_s = context.record_start(job.precision, "as the job says")
    trainer = LockstepTrainer(context, dataset, group, network)
    loop = TrainLoop(context, trainer, position=position)
    if spec.resume is not None:
        loop.restore()
    context.control.send(PhaseBegun(0.0))
    loop.advance(begin.stop)
    if not loop.is_over:
        return _hand_over(context, loop, trainer, network)
    outcome = loop.conclude(precision=job.precision, startup_s=startup_s)
    return Done(times=loop.times(), outcome=outcome)


def _run_chief(
    context: WorkerContext, dataset: Dataset, begin: BeginPhase, ramp: Ramp | None
) -> Done:
    job, spec = context.job, context.spec
    serving = context.serving
    context.metrics.activity = "joining"
    tf_config, port = exchange_addresses(context, cluster_names(context), group=begin.group)
    publish_cluster(tf_config)
    assert isinstance(serving.servers, int), "refused by the job's validator"
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=serving.min_shard_bytes,
            max_shards=serving.max_shards or serving.servers,
        ),
    )
    port.close()
    position = msgspec.json.decode(begin.position, type=Position)
    position.num_workers = job.workers

    # The chief is no worker: facts about the run go to the controller's log.
    def record(event: events.Event) -> None:
        context.control.send(ProcessNote(msgspec.json.encode(event)))

    state = RunState(job, position, dataset=dataset, control=context.control, record=record)
    network = Network(job, dataset, strategy, learns=True)
    checkpoints = NetworkCheckpoints(context, network, record=record)
    if spec.resume is not None:
        state.resume(checkpoints.restore(NEWEST))
    dispatcher = TicketDispatcher(job, dataset, network, strategy)
    startup_s = context.record_start(job.precision, "as the job says")
    loop = TicketLoop(
        context,
        dataset,
        network=network,
        dispatcher=dispatcher,
        run_state=state,
        checkpoints=checkpoints,
        ramp=ramp,
    )
    context.control.send(PhaseBegun(0.0))
    loop.advance(begin.stop)
    if not state.is_over:
        state.position.begin_next_phase()
        # On disk before PhaseOver: the next phase begins with it in new processes.
        checkpoints.save(state.position, network.state(), pin=True)
        position_then = msgspec.json.encode(state.position)
        context.control.send(PhaseOver(position=position_then, server=loop.facts()))
        return Done()
    test = loop.evaluations.test()
    outcome = state.outcome(network.figures(), test, precision=job.precision, startup_s=startup_s)
    return Done(server=loop.facts(), outcome=outcome)


def _hand_over(
    context: WorkerContext,
    loop: TrainLoop[ReplicaBatch],
    trainer: LockstepTrainer,
    network: Network,
) -> Done:
    """End the phase: the next one has new processes, and begins with a checkpoint."""
    position = loop.position
    loop.leave(synchronize=position.epoch_samples > 0)
    trainer.keep_sums(position)
    position.begin_next_phase()
    # On disk before PhaseOver: the next phase begins with it in new processes.
    if trainer.rank == 0:
        trainer.checkpoints.save(position, network.state(), pin=True)
    over = PhaseOver(times=loop.times(), position=msgspec.json.encode(position))
    context.control.send(over)
    return Done()


def _limit_threads(context: WorkerContext) -> None:
    threads, job = context.spec.threads, context.job
    in_process = job.strategy.in_process
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, threads // job.workers) if in_process else threads
    )
    # Two, so that an exchange that waits does not keep a computation from starting.
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    if in_process:
        [processor] = tf.config.list_physical_devices("CPU")
        replicas = [tf.config.LogicalDeviceConfiguration() for _ in range(job.workers)]
        tf.config.set_logical_device_configuration(processor, replicas)


def _first_line(error: tf.errors.OpError) -> str:
    """Return the problem, without its location in the graph."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    telling = (line for line in lines if line and not line.startswith(_UNTELLING))
    return next(telling, type(error).__name__)
