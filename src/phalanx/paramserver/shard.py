"""One server's part of the model, without sockets: segments in, answers out.

Joins the policy (who may), the ledger (exactly once) and the updater (numbers). The server process
drives it from its socket loop; tests and a strategy that hands its parameters over drive it
directly. Not safe for several threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from phalanx.paramserver.compression import Received
from phalanx.paramserver.facts import StalenessCounter
from phalanx.paramserver.ledger import Ledger
from phalanx.paramserver.update import Contribution, SliceUpdater, StepSize
from phalanx.protocol.policy import Outcome, Policy, Update
from phalanx.protocol.shards import Segment


@dataclass(frozen=True, slots=True)
class Arrival:
    """One segment of one push."""

    worker: int
    clock: int
    readver: int
    index: int
    """Of the segment within the shard."""
    gradient: Received | None
    weight: float = 1.0
    num_samples: int = 0
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A segment that a worker may have now."""

    worker: int
    clock: int
    readver: int
    index: int
    dropped: bool
    held_s: float = 0.0
    """How long the rule has held it back since the whole push was here."""


@dataclass
class _Seat:
    """What the shard knows of one worker."""

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
    """When all of the present push was here."""
    held_s: float = 0.0


@dataclass
class _Gathering:
    """An update whose gradients are coming in."""

    pushes: set[tuple[int, int]] = field(default_factory=set)
    arrived: dict[int, dict[tuple[int, int], tuple[Contribution, int]]] = field(
        default_factory=dict
    )
    done: set[int] = field(default_factory=set)
    """Segments that have been applied."""
    lr: float | None = None
    """Set when the members are final."""


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """What a shard is made of, as copies.

    Attributes:
        version: Updates it has had.
        samples_seen: Samples behind them.
        parameters: The slice.
        optimizer: What the update rule remembers of it, as one optimiser would have it.
        tickets: Batches that were taken; see `Ledger.state`.
    """

    version: int
    samples_seen: int
    parameters: Tensor
    optimizer: dict[str, Tensor]
    tickets: dict[int, int]


class Shard:
    """Applies pushes to a slice of the parameters under a policy.

    Args:
        segments: The slice.
        updater: Owns the numbers.
        policy: Decides.
        step_size: Says how far an update moves.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        updater: SliceUpdater,
        policy: Policy,
        step_size: StepSize,
    ) -> None:
        self.segments = tuple(segments)
        self.updater = updater
        self.policy = policy
        self.ledger = Ledger(len(self.segments))
        self.staleness = StalenessCounter()
        self.samples_seen = 0
        self.num_repeated = 0
        self.applied = [policy.version] * len(self.segments)
        """Updates that each segment has had."""
        self._step_size = step_size
        self._seats: dict[int, _Seat] = {}
        self._gatherings: dict[int, _Gathering] = {}
        self._touched: set[int] = set()
        self._held_s: dict[int, float] = {}

    @property
    def is_settled(self) -> bool:
        """Whether no update is half applied: all segments are of one version."""
        return not any(gathering.lr is not None for gathering in self._gatherings.values())

    def has_seat(self, worker: int) -> bool:
        """Whether a worker has entered."""
        return worker in self._seats

    def enter(self, worker: int, clock: int, now_s: float = 0.0) -> list[Answer]:
        """A worker takes its place, and is answered with every segment when it may read."""
        everything = set(range(len(self.segments)))
        self._seats[worker] = _Seat(
            clock=clock, seen=[clock] * len(everything), unanswered=everything
        )
        self._follow(self.policy.join(worker, clock))
        return self._answers(now_s)

    def leave(self, worker: int, now_s: float = 0.0) -> list[Answer]:
        """A worker is gone: what it began and did not finish is taken back where possible."""
        seat = self._seats.pop(worker, None)
        if seat is not None:
            self._held_s[worker] = self._held_s.get(worker, 0.0) + seat.held_s
            if seat.missing:
                self._retract(worker, seat)
        if self.updater.compensation is not None:
            self.updater.compensation.forget(worker)
        self._follow(self.policy.leave(worker))
        return self._answers(now_s)

    def deliver(self, arrival: Arrival, now_s: float = 0.0) -> list[Answer]:
        """Take one segment of a push; the worker must have entered."""
        seat = self._seats[arrival.worker]
        index = arrival.index
        if arrival.clock <= seat.seen[index]:
            self.num_repeated += 1
            return self.ask(arrival.worker, arrival.clock, index)
        if arrival.clock != seat.clock:
            self._begin(seat, arrival, now_s)
        seat.seen[index] = arrival.clock
        seat.missing -= 1
        seat.unanswered.add(index)
        self._touched.add(arrival.worker)
        if seat.update is not None:
            self._store(seat.update, arrival)
            self._try_apply(seat.update, index)
        if seat.missing == 0:
            seat.complete_s = now_s
            self._follow(self.policy.finish(arrival.worker))
        return self._answers(now_s)

    def ask(self, worker: int, clock: int, index: int) -> list[Answer]:
        """Answer a segment once more, if the worker has been released for it already."""
        seat = self._seats[worker]
        if clock != seat.clock or index in seat.unanswered or not seat.released:
            return []
        return [self._answer(worker, seat, index)]

    def has_arrived(self, worker: int, clock: int, index: int) -> bool:
        """Whether a segment of a push has been taken."""
        return self._seats[worker].seen[index] >= clock

    def state(self) -> ShardState:
        """A copy of everything that a successor needs; taken between two messages."""
        return ShardState(
            version=self.policy.version,
            samples_seen=self.samples_seen,
            parameters=self.updater.parameters.clone(),
            optimizer=self.updater.state(),
            tickets=self.ledger.state(),
        )

    def load_state(self, state: ShardState) -> None:
        """Take over what `state` returned, here or elsewhere; call before anybody enters."""
        self.updater.parameters.copy_(state.parameters)
        self.updater.load_state(state.optimizer)
        self.ledger.load_state(state.tickets)
        self.restore(version=state.version, samples_seen=state.samples_seen)

    def restore(self, *, version: int, samples_seen: int) -> None:
        """Go on from a version that was reached before; call before anybody enters."""
        self.policy.restore(version)
        self.samples_seen = samples_seen
        self.applied = [version] * len(self.segments)

    def flush(self, now_s: float = 0.0) -> list[Answer]:
        """Apply what has been gathered, however little."""
        self._follow(self.policy.flush())
        return self._answers(now_s)

    def held_s(self, worker: int) -> float:
        """How long the rule held a worker back: from the end of each push to its last answer."""
        seat = self._seats.get(worker)
        return self._held_s.get(worker, 0.0) + (seat.held_s if seat else 0.0)

    @property
    def workers(self) -> list[int]:
        """Everyone who has a seat, or had one."""
        return sorted(self._seats.keys() | self._held_s.keys())

    def _begin(self, seat: _Seat, arrival: Arrival, now_s: float) -> None:
        repeated = self.ledger.is_complete(arrival.ticket)
        seat.clock = arrival.clock
        seat.missing = len(self.segments)
        seat.released = False
        seat.unanswered = set()
        seat.complete_s = None
        outcome = self.policy.offer(
            arrival.worker,
            readver=arrival.readver,
            num_samples=0 if repeated else arrival.num_samples,
            now_s=now_s,
        )
        seat.update = outcome.update
        seat.dropped = outcome.update is None
        if outcome.update is not None:
            gathering = self._gatherings.setdefault(outcome.update, _Gathering())
            gathering.pushes.add((arrival.worker, arrival.clock))
        self._follow(outcome)

    def _store(self, number: int, arrival: Arrival) -> None:
        gradient, weight = arrival.gradient, arrival.weight
        if gradient is not None and not self.ledger.claim(arrival.ticket, arrival.index):
            self.num_repeated += 1
            gradient, weight = None, 0.0
        ticket = arrival.ticket if gradient is not None else 0
        contribution = Contribution(arrival.worker, gradient, weight)
        arrived = self._gatherings[number].arrived.setdefault(arrival.index, {})
        arrived[arrival.worker, arrival.clock] = contribution, ticket

    def _retract(self, worker: int, seat: _Seat) -> None:
        gathering = self._gatherings.get(seat.update) if seat.update is not None else None
        if seat.update is None or gathering is None:
            return
        push = (worker, seat.clock)
        gathering.pushes.discard(push)
        for index, arrived in gathering.arrived.items():
            if push in arrived:
                _, ticket = arrived.pop(push)
                self.ledger.give_back(ticket, index)
        if gathering.lr is not None:
            for index in range(len(self.segments)):
                self._try_apply(seat.update, index)

    def _follow(self, outcome: Outcome) -> None:
        for update in outcome.closed:
            self._close(update)
        for release in outcome.released:
            seat = self._seats.get(release.worker)
            if seat is not None:
                seat.released = True
                seat.readver = release.version
                seat.at_least = release.at_least
                self._touched.add(release.worker)

    def _close(self, update: Update) -> None:
        gathering = self._gatherings.setdefault(update.number, _Gathering())
        gathering.lr = self._step_size.of(
            update, samples_seen=self.samples_seen, num_workers=self.policy.num_workers
        )
        for member in update.members:
            self.staleness.add(member.worker, member.staleness)
            self.samples_seen += member.num_samples
        for index in list(gathering.arrived):
            self._try_apply(update.number, index)

    def _try_apply(self, number: int, index: int) -> None:
        gathering = self._gatherings.get(number)
        if gathering is None or gathering.lr is None or not self._is_here(gathering, index):
            return
        if self.updater.needs_norm:
            if all(self._is_here(gathering, i) for i in range(len(self.segments))):
                self._apply_clipped(number, gathering, gathering.lr)
            return
        contributions = self._in_order(gathering, index)
        gradient = self.updater.combine(index, contributions)
        if gradient is not None:
            self.updater.move(index, gradient, gathering.lr)
        self._applied(number, gathering, index)

    def _apply_clipped(self, number: int, gathering: _Gathering, lr: float) -> None:
        # Kept apart from the scratch memory that `combine` reuses.
        gradients = [
            None if gradient is None else gradient.clone()
            for i in range(len(self.segments))
            for gradient in [self.updater.combine(i, self._in_order(gathering, i))]
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
                self.updater.move(i, gradient, lr, gradient_norm=norm)
            self._applied(number, gathering, i)

    def _is_here(self, gathering: _Gathering, index: int) -> bool:
        arrived = gathering.arrived.get(index, ())
        return index not in gathering.done and len(arrived) == len(gathering.pushes)

    def _in_order(self, gathering: _Gathering, index: int) -> list[Contribution]:
        # By worker, not by arrival: bsp then gives the same bits in every run.
        arrived = gathering.arrived.get(index, {})
        return [arrived[push][0] for push in sorted(arrived)]

    def _applied(self, number: int, gathering: _Gathering, index: int) -> None:
        self.applied[index] += 1
        # Without a barrier only the worker that is pushing can have waited for this.
        if self.policy.rule.barrier:
            self._touched.update(self._seats)
        gathering.arrived.pop(index, None)
        gathering.done.add(index)
        if len(gathering.done) == len(self.segments):
            del self._gatherings[number]

    def _answers(self, now_s: float) -> list[Answer]:
        answers: list[Answer] = []
        for worker in sorted(self._touched):
            seat = self._seats.get(worker)
            if seat is not None and seat.released:
                answers += self._answer_ready(worker, seat, now_s)
        self._touched.clear()
        return answers

    def _answer_ready(self, worker: int, seat: _Seat, now_s: float) -> Iterable[Answer]:
        ready = [i for i in sorted(seat.unanswered) if self._is_readable(seat, i)]
        seat.unanswered.difference_update(ready)
        held_s = now_s - seat.complete_s if seat.complete_s is not None else 0.0
        if ready and not seat.unanswered:
            seat.held_s += held_s
            seat.complete_s = None
        return [self._answer(worker, seat, index, held_s) for index in ready]

    def _is_readable(self, seat: _Seat, index: int) -> bool:
        if self.applied[index] < seat.at_least:
            return False
        own = self._gatherings.get(seat.update) if seat.update is not None else None
        # Read my writes: clipping puts an update off until all of it is here. Where others have a
        # part in the update (k_async), nobody waits for them.
        return own is None or len(own.pushes) != 1 or own.lr is None or index in own.done

    def _answer(self, worker: int, seat: _Seat, index: int, held_s: float = 0.0) -> Answer:
        if self.updater.compensation is not None:
            self.updater.compensation.remember(worker, self.updater.parts[index])
        return Answer(worker, seat.clock, seat.readver, index, seat.dropped, held_s)
