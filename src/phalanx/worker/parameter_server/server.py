"""Run a parameter server, as a process or inside a worker.

The server itself runs in a thread; this module forwards the coordinator's orders to it, and ends
with its error if it fails. It writes the server's state to the store, from which a successor
restores the optimiser. The parameters of a lost server come from a worker, or from the store if no
worker holds newer ones.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import torch

from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import rule_for
from phalanx.consistency.shards import ShardLayout
from phalanx.engine.torch_rule import NAMED
from phalanx.engine.trained import WholeReplica
from phalanx.errors import StoreError
from phalanx.paramserver.connection import max_frame_bytes
from phalanx.paramserver.handshake import ClientIdentity, ClientRole, digest_of
from phalanx.paramserver.server import Server, ServerSettings
from phalanx.paramserver.shard import Shard
from phalanx.paramserver.update import DelayCompensation, SliceUpdater, StepSize
from phalanx.records import events
from phalanx.spec.optimize import OptimizerSpec
from phalanx.wire.bulk import Kind
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import Done, FromCoordinator
from phalanx.wire.moments import reach
from phalanx.wire.parameter_server import (
    Admit,
    Dismiss,
    ExpectParameters,
    Finish,
    Flush,
    Flushed,
    Restored,
    RestoredTickets,
    RestoreFromDisk,
    RestoreProgress,
    ServerUp,
)
from phalanx.wire.server_stats import ServerStats
from phalanx.worker.checkpoint import NEWEST, Checkpoints
from phalanx.worker.context import WorkerContext
from phalanx.worker.parameter_server.handover import (
    PhaseEntry,
    give_to_shard,
    scale_momentum,
    take_from_shard,
)
from phalanx.worker.parameter_server.server_file import ServerFile, ServerState
from phalanx.worker.rate import Rate
from phalanx.worker.replica import TrainResources, build_replica, shard_layout

Value = TypeVar("Value")

_TICK_S = 0.25
# Ranges of tickets in one control message: 256 KiB.
_RANGES_PER_MESSAGE = 1 << 14


def run_server(context: WorkerContext, start: PhaseEntry | None = None) -> Done:
    """Serve until the coordinator ends the phase or the job.

    Args:
        context: Of this process.
        start: What it begins a later phase with; None: a run with servers from the beginning.
    """
    torch.set_num_threads(context.spec.threads)
    context.metrics.activity = "serving"
    dataset = context.open_data()
    replica = build_replica(context.job, dataset, rank=0, precision="fp32", optimizer=False)
    basis = TrainResources.of_job(context.job, dataset, "fp32", replica)
    return serve(context, basis, start or first_start(context))


def serve(context: WorkerContext, basis: TrainResources, start: PhaseEntry) -> Done:
    """Serve a slice of a model until the coordinator ends the phase or the job."""
    layout = shard_layout(context, basis.replica, basis.factory)
    if context.spec.rank >= layout.num_servers:
        return Done()
    with HostedServer(context, basis, layout, start=start) as host:
        while True:
            try:
                order = context.control.inbox.get(timeout=_TICK_S)
            except queue.Empty:
                host.tick()
                continue
            if isinstance(order, Finish):
                return Done(server=host.finish())
            host.obey(order)
            host.tick()


def first_start(context: WorkerContext) -> PhaseEntry:
    """Return the initial state of a process in a run that has servers from its beginning."""
    spec = context.spec
    return PhaseEntry(
        restoring=spec.incarnation > 1,
        checkpoint=NEWEST if spec.resume is not None else None,
    )


class HostedServer:
    """Run a server in a thread and forward orders to it; use as a context manager.

    Args:
        context: Of this process.
        basis: The freshly built model, of which the slice is a copy, and its optimiser.
        layout: How the model is cut.
        start: What its slice is at the beginning, beyond what the replica holds.
    """

    def __init__(
        self,
        context: WorkerContext,
        basis: TrainResources,
        layout: ShardLayout,
        *,
        start: PhaseEntry,
    ) -> None:
        reach("making server")
        spec = context.spec
        self._context = context
        self._index = spec.rank
        self._bounds = layout.bounds(self._index)
        serving = context.serving
        self._file = ServerFile(context.store, self._index, every_s=serving.snapshot_s)
        self._shard = make_shard(context, basis, layout, start=start)
        self._optimizer_version = 0
        self._restoring = start.restoring
        self._phase_begin = start.position.phase_begin if start.position is not None else 0
        # In a later phase the freshly built model is not the current state.
        self._begins_anew = start.position is not None and start.checkpoint is None
        if start.checkpoint is not None:
            self._take_up_checkpoint(start, start.checkpoint, basis.factory.spec)
        elif start.position is not None and start.carries:
            bounds = layout.bounds(self._index)
            give_to_shard(basis.replica, self._shard, bounds, start.momentum)
            self._shard.restore(version=start.position.updates, samples_seen=start.position.samples)
        self._saved: ServerState | None = None
        self._num_loaded = 0
        self._error: Exception | None = None
        if self._restoring:
            # Read now and not when it is needed: the serving thread never waits for the store.
            self._saved = self._read_saved()
        else:
            self._file.forget()
        self._server = Server(
            self._shard,
            keys=KeyPair.make(),
            settings=ServerSettings(
                index=self._index,
                digest=digest_of(layout),
                max_frame_bytes=max_frame_bytes(layout),
                generation=spec.attempt,
                incarnation=spec.incarnation,
                host=spec.address,
                encrypt=serving.encrypts(beyond_this_machine=spec.is_networked),
                pull_kind=Kind.BF16 if serving.pull_compression == "bf16" else Kind.F32,
                restoring=self._restoring,
            ),
        )
        self._thread = threading.Thread(target=self._serve, name="server")

    def __enter__(self) -> HostedServer:
        self._server.__enter__()
        self._thread.start()
        # Only once the thread runs: workers connect as soon as they learn the address.
        up = ServerUp(
            address=self._server.address,
            restoring=self._restoring,
            saved_version=-1 if self._saved is None else self._saved.version,
        )
        self._context.control.send(up)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The thread uses the sockets: it ends before they are closed.
        self._server.stop()
        self._thread.join()
        self._server.__exit__(kind, error, traceback)
        if error is None:
            self._file.close()

    def _serve(self) -> None:
        try:
            self._server.serve()
        except Exception as error:  # the end of a thread: `tick` raises it in the main one
            self._error = error

    def obey(self, order: FromCoordinator) -> bool:
        """Carry out an order; False: it is not for a server."""
        server = self._server
        role: ClientRole
        match order:
            case Admit():
                role = "worker" if order.role == "worker" else "reader"
                client = ClientIdentity(role, order.rank, order.incarnation)
                self._call(lambda: self._admit(order.public_key, client, order.expected))
            case Dismiss():
                role = "worker" if order.role == "worker" else "reader"
                self._call(lambda: server.dismiss(role, order.rank))
            case ExpectParameters():
                client = ClientIdentity("worker", order.donor, order.incarnation)
                self._call(lambda: server.expect(order.number, client))
                self._report_again()
            case RestoreFromDisk():
                if server.is_restoring:
                    self._restore_saved(order.number)
                self._report_again()
            case Flush() if self._server.is_restoring:
                pass  # nothing to apply or to write yet; sent again once the restore is over
            case Flush():
                reach("flushing")
                # Apply first, so that the version written and reported holds every pending push.
                self._call(server.flush)
                ledger = self._shard.ledger
                self._call(lambda: ledger.forget_below(order.done_below))
                version = self._write_now() if order.write else self._shard.policy.version
                reach("flushed")
                self._context.control.send(Flushed(server=self._index, version=version))
            case _:
                return False
        return True

    def _call(self, function: Callable[[], Value]) -> Value:
        """Run a function in the serving thread, and return its result.

        Raises:
            TimeoutExpired: The thread is busy with one message for longer than an exchange may be.
        """
        limit_s = self._context.job.deadlines.exchange_s
        try:
            return self._server.call(function).result(limit_s)
        except TimeoutError as error:
            late = Deadline.after(limit_s, "the serving thread", setting="deadlines.exchange_s")
            raise late.error() from error

    def tick(self) -> None:
        """Report and save what has changed; called a few times a second.

        Raises:
            Exception: The serving thread has failed with it.
        """
        if self._error is not None:
            raise self._error
        self._context.metrics.version = self._shard.policy.version
        if self._restoring:
            self._report_restore()
        elif self._file.is_due:
            state = self._call(self._settled_state)
            if state is not None:
                self._file.write_meanwhile(state)

    def _report_restore(self) -> None:
        restore, send = self._server.restore, self._context.control.send
        version = restore.version
        if version is None:
            if restore.num_loaded != self._num_loaded:
                self._num_loaded = restore.num_loaded
                number = restore.state.number
                send(RestoreProgress(self._index, number=number, num_loaded=self._num_loaded))
            return
        self._restoring = False
        self._saved = None
        held = self._call(self._shard.ledger.held)
        *others, last = held.parts(_RANGES_PER_MESSAGE)
        for part in others:
            send(RestoredTickets(self._index, part.encode()))
        send(
            Restored(
                server=self._index,
                # Not the present version: updates may have been made since.
                version=version,
                optimizer_version=self._optimizer_version,
                tickets=last.encode(),
            )
        )

    def _report_again(self) -> None:
        """Have `tick` repeat the report of a restore that the coordinator still waits for."""
        self._restoring = True

    def give_back(self, replica: WholeReplica) -> None:
        """Put the slice and its optimiser state into the replica; no worker pushes any more."""
        self._call(lambda: take_from_shard(replica, self._shard, self._bounds))

    def finish(self) -> ServerStats:
        """Return the totals, once no client has an open request."""
        facts = self._call(self._server.facts)
        self._context.log.record(events.Served(facts=facts))
        return facts

    def _admit(self, public_key: str, client: ClientIdentity, expected: bool) -> None:
        self._server.admit(public_key, client)
        if self._server.is_restoring and client.role == "worker" and expected:
            # It was there before the loss: the next update has to wait for it again. One that had
            # left comes back with its next ticket only, and all would wait for it until then.
            self._shard.policy.expect(client.rank)

    def _write_now(self) -> int:
        state = self._call(self._take_state)
        self._file.write(state)
        return state.version

    def _settled_state(self) -> ServerState | None:
        """Return a copy of the state; None: it is a mix of two versions at this moment."""
        if self._shard.policy.rule.barrier and not self._shard.is_settled:
            return None
        return self._take_state()

    def _take_state(self) -> ServerState:
        self._context.log.record(events.Served(facts=self._server.facts()))
        return _state_of(self._shard)

    def _last_written(self) -> ServerState | None:
        """Return the state written last, if it is of this phase."""
        found = self._file.read()
        return found if found is not None and found.samples_seen >= self._phase_begin else None

    def _read_saved(self) -> ServerState | None:
        """Return the state to restore if no worker has a newer one, and load its optimiser."""
        found = self._last_written()
        if found is not None:
            self._shard.updater.load_state(found.optimizer)
            self._optimizer_version = found.version
            return found
        # The beginning of the run or phase; kept, because a donor that is lost half way leaves
        # the slice a mix of both.
        return None if self._begins_anew else _state_of(self._shard)

    def _restore_saved(self, number: int) -> None:
        """Restore the state written last, or that of the phase's beginning if there is none."""
        saved = self._saved
        if saved is None:
            raise StoreError(
                f"server {self._index} was lost at the switch, and no worker has a copy of its "
                "parameters; continue with `phalanx train --resume RUN`"
            )

        def install() -> None:
            self._shard.updater.parameters.copy_(saved.parameters)
            self._server.restored(version=saved.version, tickets=saved.tickets, number=number)

        self._call(install)

    def _take_up_checkpoint(self, start: PhaseEntry, name: str, spec: OptimizerSpec) -> None:
        prefix = "replica.optimizer/"
        checkpoints = Checkpoints(self._context.store, self._context.job.checkpoint)
        found = checkpoints.load(name, only=["replica.parameters", prefix], part=self._bounds)
        if found is None:
            return
        position, tensors = found.position, found.tensors
        if any(key.startswith(prefix + NAMED) for key in tensors):
            # Rows mean something else there: these tensors belong to whole parameters.
            by_name = checkpoints.load(found.name, only=[prefix + NAMED])
            assert by_name is not None
            tensors |= by_name.tensors
        if "replica.parameters" in tensors:
            self._shard.updater.parameters.copy_(tensors["replica.parameters"])
        else:
            # Written when the chief was lost: the parameters come from another worker.
            self._begins_anew = True
        optimizer = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        self._shard.updater.load_state(scale_momentum(optimizer, start.momentum, spec))
        self._shard.restore(version=position.updates, samples_seen=position.samples)
        self._optimizer_version = position.updates


def _state_of(shard: Shard) -> ServerState:
    state = shard.state()
    return ServerState(
        version=state.version,
        samples_seen=state.samples_seen,
        parameters=state.parameters,
        optimizer=state.optimizer,
        tickets=state.tickets,
    )


def make_shard(
    context: WorkerContext, basis: TrainResources, layout: ShardLayout, *, start: PhaseEntry
) -> Shard:
    """Make this server's shard with its rules, from the replica's parameters."""
    job, serving, index = context.job, context.serving, context.spec.rank
    first, end = layout.bounds(index)
    segments = layout.of_server(index)
    parameters = basis.replica.parameters[first:end].clone()
    compensation = None
    if serving.delay_compensation != "off":
        compensation = DelayCompensation(
            parameters,
            adaptive=serving.delay_compensation == "adaptive",
            strength=serving.delay_lambda,
        )
    rule = rule_for(serving)
    rate = Rate(job, samples_per_epoch=basis.dataset.epoch_samples, ramp=start.ramp)
    return Shard(
        segments,
        updater=SliceUpdater(basis.factory, parameters, segments, compensation=compensation),
        # A successor does not wait for workers that may be gone by now.
        policy=ConsistencyPolicy(rule, () if start.restoring else range(job.workers)),
        step_size=StepSize(
            rate,
            scaling=serving.lr_scaling,
            rule=rule,
            push_samples=job.global_batch / job.workers,
        ),
        num_parts=job.workers,
    )
