"""One phase of a run, from joining the cluster to the last word: which role does what.

A process lives for one phase; a job without a switch has one. The controller says where the phase
begins and ends.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec
import tensorflow as tf

from phalanx.data.pipeline import Dataset
from phalanx.errors import EngineError, PeerError
from phalanx.peer.tensorflow.book import Book
from phalanx.peer.tensorflow.chief import ServingLoop
from phalanx.peer.tensorflow.environment import publish_cluster
from phalanx.peer.tensorflow.evaluator import run_evaluator
from phalanx.peer.tensorflow.group import form_group
from phalanx.peer.tensorflow.lockstep import LockstepLoop
from phalanx.peer.tensorflow.meeting import meet
from phalanx.peer.tensorflow.network import Network
from phalanx.peer.tensorflow.orders import Orders
from phalanx.peer.tensorflow.servant import cluster_names, run_servant
from phalanx.records.position import Position
from phalanx.spec.phases import phase_job
from phalanx.wire.messages import Done, PhaseOver
from phalanx.wire.peers import Note
from phalanx.wire.phases import Begin, Begun, Idle
from phalanx.worker.rate import Ramp, Rate, ramp_into
from phalanx.worker.station import Station

# How lines of its errors begin that say where, not what.
_UNTELLING = ("Graph execution error", "Detected at", "File ", "<stack traces", "[[", "at ")
# What TensorFlow raises when somebody it needs is gone.
_LOST_PEER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def run_phase(station: Station) -> Done:
    """Do this process's part of the phase that the controller names."""
    # Its reports on every settings object would bury what a reader of the log looks for.
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _limit_threads(station)
    station.tally.activity = "reading data"
    dataset = station.open_data()
    station.control.send(Idle(dataset.train.num_samples))
    begin = _await_begin(station)
    ramp = None
    if station.job.strategy.resolved:
        ramp = ramp_into(station.job, msgspec.json.decode(begin.position, type=Position))
        job = phase_job(station.job, begin.phase)
        station = replace(station, spec=station.spec.model_copy(update={"job": job}))
    try:
        return _run_role(station, dataset, begin, ramp)
    except _LOST_PEER as error:
        raise PeerError(f"TensorFlow lost a peer: {_first_line(error)}") from error
    except tf.errors.OpError as error:
        raise EngineError(f"TensorFlow failed: {_first_line(error)}") from error


def _await_begin(station: Station) -> Begin:
    # Waits until Begin or the end of this process: the lifelines see to that.
    early = []
    while not isinstance(word := station.control.inbox.get(), Begin):
        early.append(word)
    for one in early:
        station.control.inbox.put(one)
    return word


def _run_role(station: Station, dataset: Dataset, begin: Begin, ramp: Ramp | None) -> Done:
    if not station.job.strategy.updates_on_servers:
        return _run_lockstep(station, dataset, begin)
    match station.spec.role:
        case "chief":
            return _run_chief(station, dataset, begin, ramp)
        case "evaluator":
            return run_evaluator(station, dataset)
        case _:
            return run_servant(station, dataset, begin)


def _run_lockstep(station: Station, dataset: Dataset, begin: Begin) -> Done:
    """Train as one of the workers that step together."""
    job, spec = station.job, station.spec
    station.tally.activity = "joining"
    if job.worker_processes > 1:
        names = [f"worker-{rank}" for rank in range(job.worker_processes)]
        tf_config, port = meet(station, names, group=begin.group)
        publish_cluster(tf_config)
        group = form_group(job, rank=spec.rank)
        port.close()
    else:
        group = form_group(job, rank=spec.rank)
    tf.random.set_seed(job.seed + spec.rank)
    position = msgspec.json.decode(begin.position, type=Position)
    position.num_workers = job.workers
    book = Book(
        station,
        position,
        num_samples=dataset.train.num_samples,
        record=station.log.record if group.is_chief else None,
    )
    network = Network(job, dataset, group.strategy, learns=True)
    startup_s = station.record_start(job.precision, "as the job says")
    if spec.resume is not None and (state := book.restore()) is not None:
        network.load_state(state)
        _take_sums(station, book.position, chief=group.is_chief)
    loop = LockstepLoop(station, dataset, group, network, book)
    station.control.send(Begun(0.0))
    loop.advance(begin.stop)
    if not book.is_over:
        return _hand_over(station, book, loop, network, chief=group.is_chief)
    test = loop.conclude()
    outcome = book.outcome(
        test,
        startup_s=startup_s,
        num_parameters=network.num_parameters,
        digest=network.digest(),
        regularisation=network.regularisation(),
    )
    group.total([0.0])
    return Done(times=station.tally.times(sent_bytes=loop.sent_bytes), outcome=outcome)


def _run_chief(station: Station, dataset: Dataset, begin: Begin, ramp: Ramp | None) -> Done:
    """Train by giving orders to the workers of a parameter server."""
    job, spec = station.job, station.spec
    serving = station.serving
    station.tally.activity = "joining"
    tf_config, port = meet(station, cluster_names(station), group=begin.group)
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
    book = Book(
        station,
        position,
        num_samples=dataset.train.num_samples,
        record=lambda event: station.control.send(Note(msgspec.json.encode(event))),
    )
    network = Network(job, dataset, strategy, learns=True)
    if spec.resume is not None and (state := book.restore()) is not None:
        network.load_state(state)
    orders = Orders(job, dataset, network, strategy)
    startup_s = station.record_start(job.precision, "as the job says")
    rate = Rate(job, samples_per_epoch=dataset.train.num_samples, ramp=ramp)
    loop = ServingLoop(station, dataset, network=network, orders=orders, book=book, rate=rate)
    station.control.send(Begun(0.0))
    loop.advance(begin.stop)
    if not book.is_over:
        _turn_page(book)
        book.save(network.state(), order=network.order, pin=True)
        position_then = msgspec.json.encode(book.position)
        station.control.send(PhaseOver(position=position_then, server=loop.facts()))
        return Done()
    test = loop.looking.test()
    return Done(
        server=loop.facts(),
        outcome=book.outcome(
            test,
            startup_s=startup_s,
            num_parameters=network.num_parameters,
            digest=network.digest(),
            regularisation=network.regularisation(),
        ),
    )


def _hand_over(
    station: Station, book: Book, loop: LockstepLoop, network: Network, *, chief: bool
) -> Done:
    """End the phase: the next one has processes of its own, and begins with a checkpoint."""
    loop.leave()
    _turn_page(book)
    if chief:
        book.save(network.state(), order=network.order, pin=True)
    station.control.send(
        PhaseOver(
            times=station.tally.times(sent_bytes=loop.sent_bytes),
            position=msgspec.json.encode(book.position),
        )
    )
    return Done()


def _turn_page(book: Book) -> None:
    book.position.phase += 1
    book.position.phase_begin = book.position.samples


def _take_sums(station: Station, position: Position, *, chief: bool) -> None:
    """The sums of an epoch in progress go on with the chief's."""
    if chief:
        station.tally.epoch_loss_sum = position.epoch_loss_sum
        station.tally.epoch_correct = position.epoch_correct
        station.tally.epoch_samples = position.epoch_samples
    station.tally.step = position.updates


def _limit_threads(station: Station) -> None:
    threads, job = station.spec.threads, station.job
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
    """What went wrong, without where in the graph."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    telling = (line for line in lines if line and not line.startswith(_UNTELLING))
    return next(telling, type(error).__name__)
