"""Apply pushes to one server's slice of the model, without sockets: segments in, replies out.

Joins the policy (which push counts), the ledger (exactly once) and the updater (arithmetic). The
server drives it from its socket loop; tests drive it directly. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from phalanx.consistency.policy import ConsistencyPolicy, PushOutcome, Update
from phalanx.consistency.shards import Segment
from phalanx.paramserver.compression import Received
from phalanx.paramserver.gathering import ArrivedSegment, UpdateGathering
from phalanx.paramserver.ledger import Ledger, SegmentTickets
from phalanx.paramserver.update import Contribution, SliceUpdater, StepSize
from phalanx.wire.push_options import PushOptions
from phalanx.wire.server_stats import StalenessStats


@dataclass(frozen=True, slots=True)
class PushedSegment:
    """One segment of one push."""

    worker: int
    clock: int
    readver: int
    index: int
    """Index of the segment within the shard."""
    gradient: Received | None
    weight: float = 1.0
    num_samples: int = 0
    ticket: int = 0
    options: PushOptions | None = None
    """Of the update, if the worker's script decides them."""
    is_aside: bool = False
    """Whether another push of the same batch brings this segment."""
    continues: bool = False
    """Whether an earlier push was of the same batch."""


@dataclass(frozen=True, slots=True)
class ShardReply:
    """Permission for a worker to read a segment now."""

    worker: int
    clock: int
    readver: int
    index: int
    dropped: bool
    held_s: float = 0.0
    """Time for which the rule has held it back since the whole push was here."""


@dataclass
class _WorkerState:
    """State of one worker that has entered."""

    clock: int
    seen: list[int]
    missing: int = 0
    update: int | None = None
    dropped: bool = False
    released: bool = False
    at_least: int = 0
    readver: int = 0
    unanswered: set[int] = field(default_factory=set)
    complete_s: float | None = None
    """Time at which the present push was complete."""
    held_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """Copies of everything that a successor needs.

    Attributes:
        version: Updates it has had.
        samples_seen: Samples behind them.
        parameters: The slice.
        optimizer: Optimiser state of the slice, as one optimiser would have it.
        tickets: Batches that have changed each segment; see `Ledger.state`.
    """

    version: int
    samples_seen: int
    parameters: Tensor
    optimizer: dict[str, Tensor]
    tickets: list[SegmentTickets]


class StalenessCounter:
    """Count staleness by worker and value."""

    def __init__(self) -> None:
        self._counts: dict[int, Counter[int]] = {}

    def add(self, worker: int, staleness: int) -> None:
        """Count a push that was applied."""
        self._counts.setdefault(worker, Counter())[staleness] += 1

    def facts(self) -> dict[int, StalenessStats]:
        """Return the counts by worker, as a copy."""
        return {worker: StalenessStats(dict(count)) for worker, count in self._counts.items()}


class Shard:
    """Apply pushes to a slice of the parameters under a policy.

    Args:
        segments: Of the slice.
        updater: Owns the slice.
        policy: Decides which push counts.
        step_size: The learning rate of each update.
        num_parts: Tickets of one step of the run.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        updater: SliceUpdater,
        policy: ConsistencyPolicy,
        step_size: StepSize,
        num_parts: int = 1,
    ) -> None:
        self.segments = tuple(segments)
        self.updater = updater
        self.policy = policy
        self.ledger = Ledger(len(self.segments), num_parts)
        self.staleness = StalenessCounter()
        self.samples_seen = 0
        self.num_repeated = 0
        self.applied = [policy.version] * len(self.segments)
        """Updates that each segment has had."""
        self._num_parts = num_parts
        self._step_size = step_size
        self._workers: dict[int, _WorkerState] = {}
        self._gatherings: dict[int, UpdateGathering] = {}
        self._touched: set[int] = set()
        self._held_s: dict[int, float] = {}

    @property
    def is_settled(self) -> bool:
        """Whether no update is partly applied: all segments are of one version."""
        return not any(gathering.lr is not None for gathering in self._gatherings.values())

    def enter(self, worker: int, clock: int, now_s: float = 0.0) -> list[ShardReply]:
        """Enter a worker, which receives every segment once it may read."""
        everything = set(range(len(self.segments)))
        self._workers[worker] = _WorkerState(
            clock=clock, seen=[clock] * len(everything), unanswered=everything
        )
        self._follow(self.policy.join(worker, clock))
        return self._answers(now_s)

    def leave(self, worker: int, now_s: float = 0.0) -> list[ShardReply]:
        """Remove a worker; its unfinished push is retracted where it has not been applied."""
        state = self._workers.pop(worker, None)
        if state is not None:
            self._held_s[worker] = self._held_s.get(worker, 0.0) + state.held_s
            # Before the policy may close the update, which would wait for this push for ever.
            if state.missing:
                self._retract(worker, state)
        if self.updater.compensation is not None:
            self.updater.compensation.forget(worker)
        self._follow(self.policy.leave(worker))
        return self._answers(now_s)

    def deliver(self, arrival: PushedSegment, now_s: float = 0.0) -> list[ShardReply]:
        """Take one segment of a push; the worker must have entered."""
        state = self._workers[arrival.worker]
        index = arrival.index
        # Sent again after a broken connection: it has counted, only the reply may be lost.
        if arrival.clock <= state.seen[index]:
            self.num_repeated += 1
            return self.ask(arrival.worker, arrival.clock, index)
        if arrival.clock != state.clock:
            self._begin(state, arrival, now_s)
        state.seen[index] = arrival.clock
        state.missing -= 1
        state.unanswered.add(index)
        self._touched.add(arrival.worker)
        if state.update is not None:
            self._store(state.update, arrival)
            self._try_apply(state.update, index)
        if state.missing == 0:
            state.complete_s = now_s
            self._follow(self.policy.finish(arrival.worker))
        return self._answers(now_s)

    def ask(self, worker: int, clock: int, index: int) -> list[ShardReply]:
        """Reply with a segment once more, if the worker has been released for it already."""
        state = self._workers[worker]
        if clock != state.clock or index in state.unanswered or not state.released:
            return []
        return [self._answer(worker, state, index)]

    def reads(self, reply: ShardReply) -> bool:
        """Return whether a reply that had to wait is still wanted; the segment is sent now."""
        state = self._workers.get(reply.worker)
        if state is None or state.clock != reply.clock:
            return False
        if self.updater.compensation is not None:
            self.updater.compensation.remember(reply.worker, self.updater.parts[reply.index])
        return True

    def has_arrived(self, worker: int, clock: int, index: int) -> bool:
        """Return whether a segment of a push has been taken."""
        return self._workers[worker].seen[index] >= clock

    def state(self) -> ShardState:
        """Return a copy of everything that a successor needs; call between two messages."""
        return ShardState(
            version=self.policy.version,
            samples_seen=self.samples_seen,
            parameters=self.updater.parameters.clone(),
            optimizer=self.updater.state(),
            tickets=self.ledger.state(),
        )

    def load_state(self, state: ShardState) -> None:
        """Load a state that `state` returned, here or elsewhere; call before any worker enters."""
        self.updater.parameters.copy_(state.parameters)
        self.updater.load_state(state.optimizer)
        self.restore(version=state.version, samples_seen=state.samples_seen)
        self.ledger.load_state(state.tickets)

    def restore(self, *, version: int, samples_seen: int) -> None:
        """Continue from a version that was reached before; call before any worker enters."""
        self.policy.restore(version)
        self.samples_seen = samples_seen
        self.ledger.num_samples = [samples_seen] * len(self.segments)
        self.applied = [version] * len(self.segments)

    def flush(self, now_s: float = 0.0) -> list[ShardReply]:
        """Apply the gathered pushes, however few."""
        self._follow(self.policy.flush())
        return self._answers(now_s)

    def held_s(self, worker: int) -> float:
        """Return how long the rule held a worker back: from each push's end to its last reply."""
        state = self._workers.get(worker)
        return self._held_s.get(worker, 0.0) + (state.held_s if state else 0.0)

    @property
    def workers(self) -> list[int]:
        """Workers that have entered at any time."""
        return sorted(self._workers.keys() | self._held_s.keys())

    def _begin(self, state: _WorkerState, arrival: PushedSegment, now_s: float) -> None:
        # A batch of which any segment was taken before brings no new samples.
        repeated = not arrival.continues and self.ledger.is_known(arrival.ticket)
        state.clock = arrival.clock
        state.missing = len(self.segments)
        state.released = False
        state.unanswered = set()
        state.complete_s = None
        outcome = self.policy.offer(
            arrival.worker,
            readver=arrival.readver,
            num_samples=0 if repeated else arrival.num_samples,
            now_s=now_s,
        )
        state.update = outcome.update
        state.dropped = outcome.update is None
        if outcome.update is not None:
            gathering = self._gatherings.setdefault(outcome.update, UpdateGathering())
            push = (arrival.worker, arrival.clock)
            gathering.pushes.add(push)
            if arrival.continues:
                gathering.counted_before[push] = arrival.num_samples
            if arrival.options is not None:
                step, part = divmod(arrival.ticket - 1, self._num_parts)
                gathering.take_options(arrival.options, step, part)
        self._follow(outcome)

    def _store(self, number: int, arrival: PushedSegment) -> None:
        gradient, weight = arrival.gradient, arrival.weight
        # A batch computed twice, by a lost worker and its substitute: each segment counts once.
        is_new = not arrival.is_aside and self.ledger.claim(arrival.ticket, arrival.index)
        if not is_new:
            self.num_repeated += not arrival.is_aside
            gradient, weight = None, 0.0
        arrived = self._gatherings[number].arrived.setdefault(arrival.index, {})
        arrived[arrival.worker, arrival.clock] = ArrivedSegment(
            Contribution(arrival.worker, gradient, weight),
            ticket=arrival.ticket if is_new else 0,
            num_samples=arrival.num_samples if is_new else 0,
        )

    def _retract(self, worker: int, state: _WorkerState) -> None:
        gathering = self._gatherings.get(state.update) if state.update is not None else None
        if state.update is None or gathering is None:
            return
        push = (worker, state.clock)
        gathering.pushes.discard(push)
        gathering.counted_before.pop(push, None)
        for index, arrived in gathering.arrived.items():
            if push in arrived:
                self.ledger.give_back(arrived.pop(push).ticket, index)
        # The update is closed, and may have waited for this push only.
        if gathering.lr is not None:
            for index in range(len(self.segments)):
                self._try_apply(state.update, index)

    def _follow(self, outcome: PushOutcome) -> None:
        for update in outcome.closed:
            self._close(update)
        for release in outcome.released:
            state = self._workers.get(release.worker)
            if state is not None:
                state.released = True
                state.readver = release.version
                state.at_least = release.at_least
                self._touched.add(release.worker)

    def _close(self, update: Update) -> None:
        gathering = self._gatherings.setdefault(update.number, UpdateGathering())
        gathering.lr = self._step_size.of(
            update,
            samples_seen=self.samples_seen,
            num_workers=self.policy.num_workers,
            base=gathering.options.rate if gathering.options is not None else 1.0,
        )
        gathering.weight = self._step_size.weight_of(update, num_workers=self.policy.num_workers)
        # After the rate, which depends on the samples of all updates before this one.
        for member in update.members:
            self.staleness.add(member.worker, member.staleness)
            self.samples_seen += member.num_samples
        self.samples_seen -= sum(gathering.counted_before.values())
        for index in list(gathering.arrived):
            self._try_apply(update.number, index)

    def _try_apply(self, number: int, index: int) -> None:
        gathering = self._gatherings.get(number)
        if gathering is None or gathering.lr is None or not gathering.is_here(index):
            return
        options = gathering.options
        if self.updater.needs_norm or (options is not None and options.clip_norm is not None):
            if all(gathering.is_here(i) for i in range(len(self.segments))):
                self._apply_clipped(number, gathering, gathering.lr)
            return
        gradient = self._combine(gathering, index)
        if gradient is not None:
            self.updater.move(index, gradient, gathering.lr, options=options)
        self._applied(number, gathering, index)

    def _apply_clipped(self, number: int, gathering: UpdateGathering, lr: float) -> None:
        # Copies, because `combine` reuses its scratch memory.
        gradients = [
            None if gradient is None else gradient.clone()
            for i in range(len(self.segments))
            for gradient in [self._combine(gathering, i)]
        ]
        norm = math.sqrt(
            math.fsum(
                self.updater.squared_norm(i, gradient)
                for i, gradient in enumerate(gradients)
                if gradient is not None
            )
        )
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                self.updater.move(i, gradient, lr, gradient_norm=norm, options=gathering.options)
            self._applied(number, gathering, i)

    def _combine(self, gathering: UpdateGathering, index: int) -> Tensor | None:
        # By worker, not by arrival: bsp then gives the same bits in every run.
        arrived = gathering.arrived.get(index, {})
        contributions = [arrived[push].contribution for push in sorted(arrived)]
        return self.updater.combine(index, contributions, update_weight=gathering.weight)

    def _applied(self, number: int, gathering: UpdateGathering, index: int) -> None:
        self.applied[index] += 1
        # Without a barrier only the pushing worker can have waited for this.
        if self.policy.rule.barrier:
            self._touched.update(self._workers)
        arrived = gathering.arrived.pop(index, {})
        self.ledger.apply(index, ((one.ticket, one.num_samples) for one in arrived.values()))
        gathering.done.add(index)
        if len(gathering.done) == len(self.segments):
            del self._gatherings[number]

    def _answers(self, now_s: float) -> list[ShardReply]:
        answers: list[ShardReply] = []
        for worker in sorted(self._touched):
            state = self._workers.get(worker)
            if state is not None and state.released:
                answers += self._answer_ready(worker, state, now_s)
        self._touched.clear()
        return answers

    def _answer_ready(self, worker: int, state: _WorkerState, now_s: float) -> Iterable[ShardReply]:
        ready = [i for i in sorted(state.unanswered) if self._is_readable(state, i)]
        state.unanswered.difference_update(ready)
        held_s = now_s - state.complete_s if state.complete_s is not None else 0.0
        if ready and not state.unanswered:
            state.held_s += held_s
            state.complete_s = None
        return [self._answer(worker, state, index, held_s) for index in ready]

    def _is_readable(self, state: _WorkerState, index: int) -> bool:
        if self.applied[index] < state.at_least:
            return False
        own = self._gatherings.get(state.update) if state.update is not None else None
        # Read your writes: clipping delays an update until all of it is here. Where others have a
        # part in the update (k_async), no reply waits for them.
        return own is None or len(own.pushes) != 1 or own.lr is None or index in own.done

    def _answer(
        self, worker: int, state: _WorkerState, index: int, held_s: float = 0.0
    ) -> ShardReply:
        if self.updater.compensation is not None:
            self.updater.compensation.remember(worker, self.updater.parts[index])
        return ShardReply(worker, state.clock, state.readver, index, state.dropped, held_s)
