"""The role of the chief: variables on TensorFlow's servers, tickets to its workers.

A *ticket* is one part of one global batch, as in the native backend, and makes one update. The
chief says which rows of the decoded data it is made of; TensorFlow's coordinator gives it to a
worker that is free, and again to another if that one is lost. At the end of an epoch all tickets
are done; the evaluator measures that state while the next epoch goes on.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.data.pipeline import Dataset
from phalanx.errors import EngineError
from phalanx.peer.tensorflow.book import Book, Measures
from phalanx.peer.tensorflow.feed import Plan, train_plan
from phalanx.peer.tensorflow.looking import Looking
from phalanx.peer.tensorflow.network import Network
from phalanx.peer.tensorflow.orders import Orders, Returned
from phalanx.peer.tensorflow.talk import Moment, StepRow, Steps, tell
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.facts import ServerFacts, StalenessFacts
from phalanx.wire.phases import Limit
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.context import WorkerContext
from phalanx.worker.rate import Rate

# Tickets on their way per worker: one at work, the next one waiting for it, and one to spare.
_AHEAD = 3
# Facts about steps go to their workers this often.
_TELL_S = 0.25


@dataclass(frozen=True)
class _Ticket:
    number: int
    rows: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int32]
    lr: float


class ServingLoop:
    """The chief's way through a phase.

    Args:
        station: Of this process.
        dataset: What is learnt.
        network: What is trained; its variables live on the servers.
        orders: How tickets get to the workers.
        book: The run so far.
        rate: The learning rate by samples seen.
    """

    def __init__(
        self,
        station: WorkerContext,
        dataset: Dataset,
        *,
        network: Network,
        orders: Orders,
        book: Book,
        rate: Rate,
    ) -> None:
        self._station = station
        self._job = station.job
        self._dataset = dataset
        self._network = network
        self._orders = orders
        self._book = book
        self._rate = rate
        assert isinstance(self._job.strategy, ParameterServerSpec)
        alone = self._job.strategy.lr_scaling == "none"
        self._rate_share = 1.0 if alone else 1.0 / self._job.workers
        num_steps = -(-dataset.train.num_samples // self._job.global_batch)
        self._plan = TicketPlan(num_parts=self._job.workers, num_steps=num_steps)
        self._rows: dict[int, list[StepRow]] = {}
        self._staleness: dict[int, Counter[int]] = {}
        self._told = time.monotonic()
        self._began = time.monotonic()
        self._lr = 0.0
        self._ordered = book.position.updates
        self.looking = Looking(station, dataset, network, book)

    def advance(self, limit: Limit | None) -> None:
        """Train until the job is over, or until the limit."""
        book = self._book
        while not book.is_over and not book.is_at(limit):
            self._train_stretch(limit)
            if book.is_at_end_of_epoch:
                self._end_epoch()
            elif not book.is_at(limit):
                book.save(self._network.state(), order=self._network.order)
        self.looking.wait()

    def facts(self) -> ServerFacts:
        """What the servers saw, as far as the chief knows: they keep no account of their own."""
        updates = sum(count.total() for count in self._staleness.values())
        return ServerFacts(
            server=0,
            version=self._book.position.updates,
            samples=self._book.position.samples,
            pushes=updates,
            applied=updates,
            dropped=0,
            lost=0,
            gathered=0,
            repeated=0,
            refused=0,
            staleness={
                rank: StalenessFacts(dict(sorted(count.items())))
                for rank, count in sorted(self._staleness.items())
            },
            held_s={},
            sent_bytes={},
            received_bytes={},
            running_s=time.monotonic() - self._began,
            busy_s=0.0,
            queue_mean=0.0,
            queue_max=0,
        )

    def _train_stretch(self, limit: Limit | None) -> None:
        """Train up to the end of the epoch, the next checkpoint, or the limit."""
        position = self._book.position
        self._say("begin")
        begin = time.perf_counter()
        waiting: deque[tuple[_Ticket, Returned]] = deque()
        for ticket in self._tickets(self._stop(limit)):
            waiting.append((ticket, self._order(ticket)))
            while len(waiting) >= _AHEAD * self._job.workers:
                self._take(*waiting.popleft())
        while waiting:
            self._take(*waiting.popleft())
        position.train_s += time.perf_counter() - begin
        self._tell_workers(now=True)
        self._say("end")

    def _stop(self, limit: Limit | None) -> int:
        """The step of this epoch before which the stretch ends."""
        position = self._book.position
        step = position.epoch_samples // self._job.global_batch
        every = self._job.checkpoint.every_steps
        stop = self._plan.num_steps
        if every is not None:
            stop = min(stop, step + every - step % every)
        if limit is not None and limit.epoch == position.epoch:
            stop = min(stop, limit.step)
        return stop

    def _tickets(self, stop: int) -> Iterator[_Ticket]:
        """The tickets of the stretch, in the order of their steps."""
        position = self._book.position
        epoch, samples = position.epoch, position.samples
        first = position.epoch_samples // self._job.global_batch
        plans: list[Plan] = [
            train_plan(
                self._dataset,
                self._job,
                epoch=epoch,
                rank=part,
                start_sample=position.epoch_samples,
            )
            for part in range(self._job.workers)
        ]
        for step in range(first, stop):
            number = self._plan.first(epoch, step)
            for part, plan in enumerate(plans):
                begin, end = plan.bounds[step - first], plan.bounds[step - first + 1]
                if end == begin:
                    continue
                yield _Ticket(
                    number=number + part,
                    rows=plan.rows[begin:end],
                    changes=plan.changes[begin:end],
                    lr=self._rate(samples),
                )
                samples += int(end - begin)

    def _order(self, ticket: _Ticket) -> Returned:
        self._ordered += 1
        return self._orders.give(
            ticket.rows, ticket.changes, lr=ticket.lr * self._rate_share, number=self._ordered
        )

    def _take(self, ticket: _Ticket, returned: Returned) -> None:
        """Wait for a ticket and count it."""
        while (done := returned.wait()) is None:
            # Its worker was lost after the update and before the answer: train it once more.
            returned = self._order(ticket)
        if not math.isfinite(done.loss_sum):
            raise EngineError(
                f"the loss became {done.loss_sum} in ticket {ticket.number} on rank {done.rank}; "
                "lower optimizer.lr, add schedule.warmup or set optimizer.clip_norm",
                rank=done.rank,
            )
        position = self._book.position
        position.samples += len(ticket.rows)
        position.epoch_samples += len(ticket.rows)
        position.updates += 1
        position.epoch_loss_sum += done.loss_sum
        position.epoch_correct += done.num_correct
        self._lr = ticket.lr
        row = StepRow(
            ticket=ticket.number,
            epoch=position.epoch,
            num_samples=len(ticket.rows),
            loss_sum=done.loss_sum,
            num_correct=done.num_correct,
            lr=ticket.lr,
            stamps=done.stamps,
            sent_bytes=4 * self._network.num_parameters,
        )
        self._rows.setdefault(done.rank, []).append(row)
        self._staleness.setdefault(done.rank, Counter())[done.staleness] += 1
        self._tell_workers()
        self.looking.attend()

    def _tell_workers(self, *, now: bool = False) -> None:
        """Let the workers know what they have done."""
        if not now and time.monotonic() - self._told < _TELL_S:
            return
        self._told = time.monotonic()
        for rank, rows in self._rows.items():
            tell(self._station, f"worker-{rank}", Steps(rows=tuple(rows)))
        self._rows.clear()

    def _say(self, what: str) -> None:
        position = self._book.position
        moment = Moment(
            what="begin" if what == "begin" else "end",
            epoch=position.epoch,
            total=self._dataset.train.num_samples,
            resumed=position.epoch_samples > 0,
        )
        self._station.metrics.activity = "training" if what == "begin" else "between epochs"
        for rank in range(self._job.workers):
            tell(self._station, f"worker-{rank}", moment)

    def _end_epoch(self) -> None:
        position = self._book.position
        count = max(1, position.epoch_samples)
        train = Measures(
            loss=position.epoch_loss_sum / count,
            accuracy=position.epoch_correct / count,
            num_samples=position.epoch_samples,
            duration_s=position.train_s,
        )
        self.looking.begin(train, lr=self._lr)
