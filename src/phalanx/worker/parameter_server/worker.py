"""Run a worker of a run with parameter servers: compute the tickets that it is assigned.

All orders of the coordinator go through one inbox, read between tickets and several times a second
while servers are awaited, so that a worker always learns that a server has moved.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import torch

from phalanx.comm.solo import SoloCollective
from phalanx.consistency.shards import ShardLayout
from phalanx.paramserver.client import Client
from phalanx.paramserver.client_settings import ClientSettings
from phalanx.paramserver.client_state import Detached
from phalanx.wire.deadline import Deadline, IdleDeadline
from phalanx.wire.messages import Done, FromCoordinator
from phalanx.wire.moments import enter_state, reach
from phalanx.wire.parameter_server import (
    Connect,
    Finish,
    HeldVersion,
    Pause,
    Paused,
    QueryVersion,
    Ready,
    SendParameters,
    ServerLost,
    Work,
)
from phalanx.wire.switch import HandedOver, HandOver, KeepSnapshot
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.state import rescue_optimizer_state
from phalanx.worker.context import WorkerContext
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.network_record import record_network
from phalanx.worker.parameter_server.handover import (
    PhaseEntry,
    check_statistics,
    read_statistics,
    set_statistics,
)
from phalanx.worker.parameter_server.known_servers import KnownServers
from phalanx.worker.parameter_server.server import HostedServer, first_start
from phalanx.worker.parameter_server.states import (
    GATE_OPEN,
    Computing,
    Ended,
    Joining,
    Starved,
    WorkerEvent,
    WorkerState,
    next_state,
)
from phalanx.worker.parameter_server.step import TicketTrainer
from phalanx.worker.parameter_server.tickets import BatchLoader, TicketLoader, TicketQueue
from phalanx.worker.rate import Rate
from phalanx.worker.replica import TrainResources, build_replica, decide_precision, shard_layout

_IDLE_S = 0.25


def run_parameter_server_worker(context: WorkerContext) -> Done:
    """Compute tickets until the job is done."""
    torch.set_num_threads(context.spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    precision = decide_precision(context.job, dataset, SoloCollective())
    replica = build_replica(
        context.job,
        dataset,
        rank=context.spec.rank,
        precision=precision.name,
        optimizer=False,
    )
    record_network(context, replica.module, dataset)
    with ExitStack() as stack:
        basis = TrainResources.of_job(context.job, dataset, precision.name, replica)
        worker = ParameterServerWorker(context, basis, stack, start=first_start(context))
        worker.run(on_start=lambda: context.record_start(precision.name, precision.reason))
        return worker.finish()


class _JobDone(Exception):
    """Raised to leave any wait when the job is done."""


@dataclass
class _Servers(KnownServers[Client]):
    """The servers of a worker, and copies for them that wait until there is a client."""

    donations: list[SendParameters] = field(default_factory=list)

    def donate(self, order: SendParameters) -> None:
        """Send a server the copy of its parameters, now or once there is a client."""
        if self.client is None:
            self.donations.append(order)
        else:
            self.client.donate(order.server, order.number)

    def open(self, client: Client) -> None:
        """Use a client from now on."""
        self.client = client
        # A restarted server may ask for its copy before this worker can connect.
        for order in self.donations:
            client.donate(order.server, order.number)


@dataclass
class _Deferred:
    """Orders that wait for the last push to be answered and all tickets to be done."""

    leave: bool = False
    hand_over: HandOver | None = None


class ParameterServerWorker:
    """Take part in a run, or in one phase of it, as a worker.

    Args:
        context: Of this process.
        basis: What it computes with.
        stack: Closes what it opens.
        start: What it begins with.
        slowdown: The injected slowdown, with its state from earlier phases.
    """

    def __init__(
        self,
        context: WorkerContext,
        basis: TrainResources,
        stack: ExitStack,
        *,
        start: PhaseEntry,
        slowdown: InjectedSlowdown | None = None,
    ) -> None:
        self.state: WorkerState = Joining()
        self.paused_s = time.monotonic()
        """When this worker last ran out of tickets."""
        self.layout: ShardLayout = shard_layout(context, basis.replica, basis.factory)
        """The slices of the model over servers."""
        check_statistics(basis.replica)
        self._context = context
        self._basis = basis
        self._stack = stack
        self._start = start
        self._slowdown = slowdown or InjectedSlowdown(context.job.inject, rank=context.spec.rank)
        self._checkpoints = Checkpoints(context.store, context.job.checkpoint)
        self._host = self._host_server()
        self._servers = _Servers()
        self._deferred = _Deferred()
        self._tickets = TicketQueue(context.control, self._make_loader())
        self._on_end: Callable[[], object] = lambda: None
        if start.checkpoint is not None:
            read_statistics(basis.replica, self._checkpoints, start.checkpoint)

    def run(
        self, on_start: Callable[[], object], on_end: Callable[[], object] = lambda: None
    ) -> None:
        """Take part until the coordinator ends the phase or the job.

        Args:
            on_start: Called once this worker has a place at every server.
            on_end: Called before the replica takes over the servers' state for another phase.
        """
        self._on_end = on_end
        # Finish may come while a push without samples awaits an answer that never comes.
        with suppress(_JobDone):
            self._join()
            on_start()
            # Last: a ticket must not wait for a worker without a place at the servers.
            self._tickets.ask()
            self._work()
        self._advance(WorkerEvent.FINISHED)

    @property
    def has_handed_over(self) -> bool:
        """Whether the replica holds the servers' last state, for another phase."""
        return isinstance(self.state, Ended) and self.state.handed_over

    def finish(self) -> Done:
        """Return the totals; zero bytes if the worker joined too late to take part."""
        self._context.profiler.leave()
        server = self._host.finish() if self._host is not None else None
        client = self._servers.client
        sent_bytes = client.sent_bytes if client is not None else 0
        return Done(times=self._context.metrics.times(sent_bytes=sent_bytes), server=server)

    @property
    def _client(self) -> Client:
        assert self._servers.client is not None, "asked for the client before the servers were up"
        return self._servers.client

    def _advance(self, event: WorkerEvent) -> None:
        """Move to the next state; the only place where the state changes."""
        before, now_s = self.state, time.perf_counter()
        after = self.state = next_state(before, event, now_s)
        if isinstance(before, Starved):
            idle_s = now_s - before.since_s
            self._trainer.record_wait("work", idle_s, wait_s=idle_s)
        # The sampler attributes what the machine used while a gate was open to training.
        was_open, is_open = isinstance(before, GATE_OPEN), isinstance(after, GATE_OPEN)
        if was_open != is_open:
            self._context.sampler.mark("begin" if is_open else "end")
        enter_state(after)

    def _join(self) -> None:
        context, dataset = self._context, self._basis.dataset
        context.control.send(
            Ready(
                num_samples=dataset.epoch_samples,
                portions=dataset.quota,
                precision=self._basis.precision,
                serves=self._host is not None,
                has_classes=dataset.has_labels,
            )
        )
        context.metrics.activity = "waiting for servers"
        limit_s = context.job.deadlines.start_s
        deadline = Deadline.after(limit_s, "the servers to come up", setting="deadlines.start_s")
        while not self._servers.addresses:
            self._read_inbox(deadline.remaining_s)
            deadline.check()
        client = self._stack.enter_context(self._make_client())
        self._servers.open(client)
        client.connect(self._limit("a place at every server"), self._read_inbox)
        self._advance(WorkerEvent.JOINED)
        self._trainer = TicketTrainer(
            context,
            self._basis,
            client=client,
            tickets=self._tickets,
            rate=self._recorded_rate(),
            slowdown=self._slowdown,
            make_deadline=self._limit,
            on_idle=self._read_inbox,
            num_pushes=self._num_pushes(),
        )
        self._stack.callback(self._tickets.loader.close)
        context.profiler.prepare()

    def _work(self) -> None:
        metrics = self._context.metrics
        while True:
            if not self._tickets:
                self._carry_out_deferred()
                metrics.activity = "waiting for work"
                if isinstance(self.state, Computing):
                    self._advance(WorkerEvent.DRAINED)
                self._read_inbox(_IDLE_S)
                # A server may have moved, and be waiting for the copy held here.
                self._client.attend()
                continue
            self._read_inbox()
            metrics.activity = "training"
            ticket = self._tickets.pop()
            # Work after a pause that has not been carried out yet cancels it.
            self._deferred.leave = False
            self._enter_again()
            self._advance(WorkerEvent.TICKET)
            begin = time.monotonic()
            self._trainer.train(ticket)
            self._tickets.spent(time.monotonic() - begin)

    def _carry_out_deferred(self) -> None:
        """Report all tickets as done, then leave the servers or take over their state."""
        # Pushes are answered before they are reported: the gate closes on reported tickets.
        self._trainer.settle()
        self._tickets.report()
        if self._deferred.leave:
            self._deferred.leave = False
            if not isinstance(self._client.state, Detached):
                limit = self._limit("the servers to let this worker go")
                self._client.leave(limit, self._read_inbox)
            self._advance(WorkerEvent.LEFT)
            self._report_pause()
        if self._deferred.hand_over is not None:
            self._hand_over(self._deferred.hand_over)
            self._deferred.hand_over = None

    def _hand_over(self, order: HandOver) -> None:
        """Take over the servers' last state, so that another phase can continue from it."""
        reach("handing over")
        self._on_end()
        if order.read:
            self._client.pull(self._limit("the servers' last state"), self._read_inbox)
        elif self._host is not None:
            self._host.give_back(self._basis.replica)
        self._advance(WorkerEvent.HANDED_OVER)
        # Last: once all workers have sent it, the switch is committed and the servers end.
        self._context.control.send(HandedOver())

    def _enter_again(self) -> None:
        if isinstance(self._client.state, Detached):
            self._client.connect(self._limit("a place at every server"), self._read_inbox)

    def _read_inbox(self, wait_s: float = 0.0) -> None:
        """Carry out the orders in the inbox; with a wait, until one arrives."""
        inbox = self._context.control.inbox
        if wait_s > 0:
            with suppress(queue.Empty):
                self._obey(inbox.get(timeout=min(wait_s, _IDLE_S)))
        while not inbox.empty():
            self._obey(inbox.get())
        if self._host is not None:
            self._host.tick()

    def _obey(self, order: FromCoordinator) -> None:
        if self._host is not None and self._host.obey(order):
            return
        match order:
            case Connect():
                self._servers.update(order.servers)
            case ServerLost():
                self._servers.lost.add(order.server)
            case Work():
                self._tickets.extend(order.tickets)
                set_statistics(self._basis.replica, order.statistics)
            case Pause(leave=True):
                # Only after the answer: a server drops what a worker leaves unfinished.
                self._deferred.leave = True
            case Pause():
                self._advance(WorkerEvent.PAUSED)
                self._report_pause()
            case QueryVersion():
                self._report_version(order)
            case SendParameters():
                self._servers.donate(order)
            case KeepSnapshot():
                rescue_optimizer_state(
                    self._checkpoints,
                    order.snapshot,
                    self._basis.replica,
                    position=order.position,
                )
            case HandOver():
                self._deferred.hand_over = order
            case Finish():
                raise _JobDone
            case _:
                raise AssertionError(f"{order} is not for a worker")

    def _report_version(self, order: QueryVersion) -> None:
        # Done tickets first: the restored server is asked for whatever counts as done by then.
        self._tickets.report()
        client = self._servers.client
        self._context.control.send(
            HeldVersion(
                server=order.server,
                number=order.number,
                version=self._version_of(order.server),
                acknowledged=client.acknowledged(order.server) if client is not None else 0,
            )
        )

    def _version_of(self, server: int) -> int:
        # Before joining there is no client: the version is that of the state it came with.
        if isinstance(self.state, Joining):
            return self._start.version
        return self._client.versions[server]

    def _report_pause(self) -> None:
        self.paused_s = time.monotonic()
        self._context.profiler.leave()
        self._context.control.send(Paused(self._basis.replica.buffers.numpy().tobytes()))

    def _limit(self, activity: str) -> Deadline:
        return IdleDeadline(
            self._context.job.deadlines.exchange_s,
            activity,
            setting="deadlines.exchange_s",
            is_moving=self._servers.is_moving,
        )

    def _num_pushes(self) -> int:
        """Return how many pushes a batch takes."""
        return 1

    def _recorded_rate(self) -> Callable[[int], float]:
        """Return the learning rate after so many samples, for the records."""
        samples = self._basis.dataset.epoch_samples
        return Rate(self._context.job, samples_per_epoch=samples, ramp=self._start.ramp)

    def _make_loader(self) -> BatchLoader:
        return TicketLoader(self._context, self._basis.dataset, self._plan())

    def _plan(self) -> TicketPlan:
        job, dataset = self._context.job, self._basis.dataset
        return TicketPlan.of(
            dataset.epoch_samples,
            global_batch=job.global_batch,
            num_parts=job.workers,
            portions=dataset.quota,
        )

    def _make_client(self) -> Client:
        context, start = self._context, self._start
        addresses = self._servers.addresses
        return Client(
            self.layout,
            parameters=self._basis.replica.parameters,
            gradients=self._basis.replica.gradients,
            servers=[addresses[server] for server in sorted(addresses)],
            settings=ClientSettings(
                worker=context.spec.rank,
                keys=context.keys,
                incarnation=context.spec.incarnation,
                generation=context.spec.attempt,
                compression=context.serving.compression.name,
                overlap=context.serving.overlap,
                whole=True,
                version=max(0, start.version),
                samples_seen=start.position.samples if start.position else 0,
                holds=start.carries,
            ),
        )

    def _host_server(self) -> HostedServer | None:
        context = self._context
        hosts = context.serving.servers == "colocated"
        if not hosts or context.spec.rank >= self.layout.num_servers:
            return None
        return self._stack.enter_context(
            HostedServer(context, self._basis, self.layout, start=self._start)
        )
