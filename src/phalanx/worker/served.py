"""The role of a worker whose parameters live on servers: does the tickets that it is given.

Everything the coordinator says lands in one inbox, which is looked into between batches and several
times a second while the servers are awaited, so that a worker never misses that a server has moved.
"""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import torch

from phalanx.comm.solo import SoloCollective
from phalanx.engine.spans import span
from phalanx.paramserver.client import Client, ClientSettings
from phalanx.protocol.shards import Layout
from phalanx.strategy.push_pull import Pushed, PushPull
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import Done, FromCoordinator
from phalanx.wire.phases import HandedOver, HandOver, Keep
from phalanx.wire.serving import (
    Completed,
    Connect,
    Copy,
    Donate,
    Finish,
    Offer,
    Pause,
    Paused,
    Ready,
    ServerAddress,
    WantWork,
    Work,
    WorkDone,
)
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.state import rescue_optimizer_state
from phalanx.worker.handover import Entry, read_statistics, set_statistics
from phalanx.worker.inject import Slowdown
from phalanx.worker.rate import Rate
from phalanx.worker.replica import Basis, build_replica, settle_precision
from phalanx.worker.server import HostedServer, first_entry
from phalanx.worker.station import Station
from phalanx.worker.steps import record_standstill, record_step
from phalanx.worker.units import UnitStream

# Work is asked for and reported about this often: a chatty worker keeps the coordinator busy.
_REPORT_S = 0.05
_MOST_TICKETS = 64
_IDLE_S = 0.25


def run_served_worker(station: Station) -> Done:
    """Do tickets until the job is done."""
    torch.set_num_threads(station.spec.threads)
    station.tally.activity = "reading data"
    dataset = station.open_data()
    precision = settle_precision(station.job, dataset, SoloCollective())
    replica = build_replica(
        station.job,
        dataset,
        rank=station.spec.rank,
        precision=precision.name,
        optimizer=False,
    )
    with ExitStack() as stack:
        basis = Basis(dataset, precision, replica)
        worker = ServedWorker(station, basis, stack, entry=first_entry(station))
        worker.do(on_start=lambda: station.record_start(precision.name, precision.reason))
        return worker.finish()


class _JobDone(Exception):
    """Leaves whatever wait the worker is in."""


class ServedWorker:
    """One worker.

    Args:
        station: Its place in the run.
        basis: What it computes with.
        stack: Closes what it opens.
        entry: How it comes in.
        slowdown: What the job injects into this worker, as it stands from earlier phases.
    """

    def __init__(
        self,
        station: Station,
        basis: Basis,
        stack: ExitStack,
        *,
        entry: Entry,
        slowdown: Slowdown | None = None,
    ) -> None:
        self._station = station
        self._stack = stack
        self._entry = entry
        self._checkpoints = Checkpoints(station.store, station.job.checkpoint)
        self._dataset = basis.dataset
        self._precision = basis.precision
        self._replica = basis.replica
        self._rate = Rate(
            station.job, samples_per_epoch=basis.dataset.epoch_samples, ramp=entry.ramp
        )
        self._slowdown = slowdown or Slowdown(station.job.inject, rank=station.spec.rank)
        self._layout = station.layout(self._replica.parameters.numel())
        self._plan = TicketPlan.of(
            self._dataset.epoch_samples,
            global_batch=station.job.global_batch,
            num_parts=station.job.workers,
            portions=self._dataset.quota,
        )
        self._host = self._host_server()
        self._addresses: dict[int, ServerAddress] = {}
        self._client: Client | None = None
        self._tickets: deque[int] = deque()
        self._units = UnitStream(station, self._dataset, self._plan)
        self._completed: list[Completed] = []
        self._wanted = 0
        self._reported = time.monotonic()
        self._step_s = 0.05
        self._slept_s = 0.0
        self._seen_at: dict[int, int] = {}  # samples that were known of when a ticket was begun
        self._idle_since: float | None = None
        self._is_training = False
        self._leave_next = self._left = self._connected = False
        self._hand_over_next: HandOver | None = None
        self._to_donate: list[int] = []  # servers that wait for a copy until there is a client
        self.handed_over = False
        self.paused_at = time.monotonic()
        """When this worker was last told that there is nothing to do."""
        if entry.checkpoint is not None:
            read_statistics(self._replica, self._checkpoints, entry.checkpoint)

    def do(
        self, on_start: Callable[[], object], on_end: Callable[[], object] = lambda: None
    ) -> None:
        """Take part until the coordinator says that it is over.

        Args:
            on_start: Called once this worker has a place at every server.
            on_end: Called before the replica takes what is handed over to another phase.
        """
        self._on_end = on_end
        # Finish may come while the answer to a push without samples is awaited: it never comes.
        with suppress(_JobDone):
            self._join()
            on_start()
            self._want()
            self._work()

    def _join(self) -> None:
        """Report, wait until the servers are there, and take a place at each."""
        station = self._station
        station.control.send(
            Ready(
                num_samples=self._dataset.epoch_samples,
                portions=self._dataset.quota,
                precision=self._precision.name,
                serves=self._host is not None,
            )
        )
        station.tally.activity = "waiting for servers"
        deadline = Deadline.after(station.job.deadlines.start_s, "the servers to come up")
        while not self._addresses:
            self._attend(deadline.remaining_s)
            deadline.check()
        serving = station.serving
        self._client = self._stack.enter_context(
            Client(
                self._layout,
                parameters=self._replica.parameters,
                gradients=self._replica.gradients,
                servers=[self._addresses[server] for server in sorted(self._addresses)],
                settings=ClientSettings(
                    worker=station.spec.rank,
                    keys=station.keys,
                    incarnation=station.spec.incarnation,
                    generation=station.spec.attempt,
                    compression=serving.compression,
                    overlap=serving.overlap,
                    whole=True,
                    version=max(0, self._entry.version),
                    samples_seen=self._entry.position.samples if self._entry.position else 0,
                    holds=self._entry.carries,
                ),
            )
        )
        for server in self._to_donate:
            self._client.donate(server)
        self._client.connect(self._limit("a place at every server"), self._attend_all)
        self._connected = True
        self._push_pull = PushPull(
            self._replica,
            self._client,
            overlap=serving.overlap,
            limit_s=station.job.deadlines.exchange_s,
            on_idle=self._attend_all,
        )
        self._stack.callback(self._units.close)
        station.profiler.prepare()

    def _work(self) -> None:
        """Do tickets as they come."""
        assert self._client is not None
        tally = self._station.tally
        while True:
            if not self._tickets:
                self._settle()
                self._report()
                self._leave()
                self._hand_over()
                tally.activity = "waiting for work"
                self._idle_since = self._idle_since or time.perf_counter()
                self._attend(_IDLE_S)
                # A server may have moved, and be waiting for the copy that is held here.
                self._client.attend()
                continue
            self._attend_all()
            tally.activity = "training"
            ticket = self._tickets.popleft()
            self._leave_next = False
            self._enter_again()
            self._go_on()
            begin = time.monotonic()
            if ticket == 0:
                self._take_part()
            else:
                self._train(ticket)
            self._step_s += 0.1 * (time.monotonic() - begin - self._step_s)
            if time.monotonic() - self._reported > _REPORT_S:
                self._report()

    def finish(self) -> Done:
        """Last words; a worker that came too late to take part has not sent anything."""
        self._station.profiler.leave()
        self._rest()
        server = self._host.finish() if self._host is not None else None
        sent_bytes = self._client.sent_bytes if self._client is not None else 0
        return Done(times=self._station.tally.times(sent_bytes=sent_bytes), server=server)

    def _go_on(self) -> None:
        """There is work, maybe the first since the last gate."""
        self._count_idle()
        if not self._is_training:
            self._is_training = True
            self._station.sampler.mark("begin")

    def _rest(self) -> None:
        """Nothing is left to do before the next gate."""
        self._count_idle()
        if self._is_training:
            self._is_training = False
            self._station.sampler.mark("end")

    def _count_idle(self) -> None:
        """Between two gates a worker without work waits for the others."""
        since, self._idle_since = self._idle_since, None
        if self._is_training and since is not None:
            idle_s = time.perf_counter() - since
            self._stand_still("work", idle_s, wait_s=idle_s)

    def _take_part(self) -> None:
        assert self._client is not None
        self._settle()
        begin = time.perf_counter()
        self._push_pull.take_part()
        held_s = self._client.held_s
        self._stand_still("round", time.perf_counter() - begin, wait_s=held_s)

    def _stand_still(self, what: str, duration_s: float, *, wait_s: float) -> None:
        station = self._station
        record_standstill(
            station.log,
            station.tally,
            epoch=station.tally.epoch,
            what=what,
            duration_s=duration_s,
            wait_s=wait_s,
        )

    def _train(self, ticket: int) -> None:
        assert self._client is not None
        self._station.profiler.enter(self._plan.unit(ticket).epoch)
        asked = time.perf_counter()
        with span("input"):
            batch = self._units.next()
        input_s = time.perf_counter() - asked
        tally, epoch = self._station.tally, batch.epoch
        if tally.epoch != epoch or tally.epoch_total == 0:
            tally.begin_epoch(epoch, total=self._dataset.epoch_samples, resumed=False)
        total = self._dataset.epoch_samples * self._station.job.epochs
        self._slept_s = self._slowdown.wait(self._client.samples_seen / total)
        self._seen_at[ticket] = self._client.samples_seen
        for pushed in self._push_pull.push(batch, ticket):
            self._complete(pushed, input_s=input_s)
            input_s = 0.0
        self._station.profiler.step_done()

    def _settle(self) -> None:
        for pushed in self._push_pull.drain():
            self._complete(pushed, input_s=0.0)

    def _complete(self, pushed: Pushed, *, input_s: float) -> None:
        assert self._client is not None
        facts, unit, tally = pushed.facts, self._plan.unit(pushed.ticket), self._station.tally
        facts = self._slowdown.count(facts, self._slept_s)
        lr = self._rate(self._seen_at.pop(pushed.ticket))
        record_step(
            self._station.log,
            tally,
            facts,
            epoch=unit.epoch,
            step=pushed.ticket,
            lr=lr,
            input_s=input_s,
            sent_bytes=self._client.sent_bytes,
        )
        self._completed.append(
            Completed(pushed.ticket, facts.num_samples, facts.loss_sum, facts.num_correct)
        )

    def _report(self) -> None:
        """Tell the coordinator what is done, and ask for enough until the next report."""
        self._reported = time.monotonic()
        target = min(_MOST_TICKETS, max(2, math.ceil(2 * _REPORT_S / max(self._step_s, 1e-4))))
        want = max(0, target - len(self._tickets))
        if self._completed or want > self._wanted:
            self._station.control.send(WorkDone(tuple(self._completed), want))
            self._completed.clear()
            self._wanted = want

    def _want(self) -> None:
        self._wanted = 2
        self._station.control.send(WantWork(self._wanted))

    def _attend_all(self) -> None:
        """Look into the inbox without waiting."""
        while not self._station.control.inbox.empty():
            self._obey(self._station.control.inbox.get())
        if self._host is not None:
            self._host.tick()

    def _attend(self, wait_s: float) -> None:
        """Wait a moment for something in the inbox."""
        with suppress(queue.Empty):
            self._obey(self._station.control.inbox.get(timeout=min(wait_s, _IDLE_S)))
        self._attend_all()

    def _obey(self, order: FromCoordinator) -> None:
        if self._host is not None and self._host.obey(order):
            return
        match order:
            case Connect():
                self._meet(order)
            case Work():
                self._wanted = max(0, self._wanted - len(order.tickets))
                self._take_tickets(order.tickets)
                set_statistics(self._replica, order.statistics)
            case Pause():
                self._pause(order)
            case Offer():
                self._station.control.send(Copy(order.server, self._version_of(order.server)))
            case Donate() if self._client is not None:
                self._client.donate(order.server)
            case Donate():
                self._to_donate.append(order.server)
            case Keep():
                rescue_optimizer_state(
                    self._checkpoints, order.snapshot, self._replica, position=order.position
                )
            case HandOver():
                self._hand_over_next = order
            case Finish():
                raise _JobDone
            case _:
                raise AssertionError(f"{order} is not for a worker")

    def _take_tickets(self, tickets: Sequence[int]) -> None:
        self._tickets.extend(tickets)
        for ticket in tickets:
            if ticket != 0:
                self._units.ask(ticket)

    def _version_of(self, server: int) -> int:
        if self._client is None or not self._connected:
            return self._entry.version
        return self._client.versions[server]

    def _hand_over(self) -> None:
        """Take what the servers hold last, so that another phase can go on from it."""
        if self._hand_over_next is not None:
            assert self._client is not None
            self._on_end()
            if self._hand_over_next.read:
                self._client.pull(self._limit("the servers' last state"), self._attend_all)
            elif self._host is not None:
                self._host.give_back(self._replica)
            self._hand_over_next = None
            self.handed_over = True
            self._station.control.send(HandedOver())

    @property
    def layout(self) -> Layout:
        """How the model is cut over servers."""
        return self._layout

    def _meet(self, order: Connect) -> None:
        for address in order.servers:
            known = self._addresses.get(address.server)
            if self._client is not None and known != address:
                self._client.relocate(address)
            self._addresses[address.server] = address

    def _pause(self, order: Pause) -> None:
        """Rest; a worker that is to leave the servers does so once its push is answered."""
        if order.leave:
            self._leave_next = True
        else:
            self._say_paused()

    def _leave(self) -> None:
        if self._leave_next:
            assert self._client is not None
            self._leave_next = False
            if not self._left:
                self._client.leave(
                    self._limit("the servers to let this worker go"), self._attend_all
                )
                self._left = True
            self._say_paused()

    def _enter_again(self) -> None:
        if self._left:
            assert self._client is not None
            self._left = False
            self._client.connect(self._limit("a place at every server"), self._attend_all)

    def _say_paused(self) -> None:
        self.paused_at = time.monotonic()
        self._rest()
        self._station.profiler.leave()
        self._station.control.send(Paused(self._replica.buffers.numpy().tobytes()))

    def _limit(self, activity: str) -> Deadline:
        return Deadline.after(self._station.job.deadlines.exchange_s, activity)

    def _host_server(self) -> HostedServer | None:
        station = self._station
        hosts = station.serving.servers == "colocated"
        if not hosts or station.spec.rank >= self._layout.num_servers:
            return None
        return self._stack.enter_context(
            HostedServer(
                station,
                self._replica,
                self._layout,
                samples_per_epoch=self._dataset.epoch_samples,
                entry=self._entry,
            )
        )
