"""Run the chief of a parameter-server run: variables on servers, tickets to workers.

A *ticket* is one part of one global batch, as in the native backend, and makes one update. The
chief names its rows of the decoded data; TensorFlow's coordinator gives it to a free worker, and to
another if that one is lost. At the end of an epoch all tickets are done; the evaluator measures
that state while the next epoch goes on.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.backends.tensorflow.checkpoints import NetworkCheckpoints
from phalanx.backends.tensorflow.dispatch import DoneTicket, PendingTicket, TicketDispatcher
from phalanx.backends.tensorflow.evaluation import EpochEvaluations
from phalanx.backends.tensorflow.input_pipeline import InputPlan, train_plan
from phalanx.backends.tensorflow.messages import StepRow, StepsDone, TrainingMark, send_message
from phalanx.backends.tensorflow.network import Network
from phalanx.data.pipeline import Dataset
from phalanx.engine.result import check_loss
from phalanx.records.measures import Measures
from phalanx.wire.server_stats import ServerStats, StalenessStats
from phalanx.wire.switch import StepLimit
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.context import WorkerContext
from phalanx.worker.rate import Ramp, Rate
from phalanx.worker.run_state import RunState

# Tickets in flight per worker: one computed, one queued, and one to spare.
_AHEAD = 3
# Interval at which step facts are sent to their workers.
_REPORT_S = 0.25


@dataclass(frozen=True)
class _Ticket:
    number: int
    rows: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int32]
    lr: float


class StepReports:
    """Report steps to their workers, and count staleness."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._rows: dict[int, list[StepRow]] = {}
        self._staleness: dict[int, Counter[int]] = {}
        self._sent_at = time.monotonic()
        self._began = time.monotonic()

    def add(self, rank: int, row: StepRow, *, staleness: int) -> None:
        """Count a step of a worker; it is sent with others, a few times a second."""
        self._rows.setdefault(rank, []).append(row)
        self._staleness.setdefault(rank, Counter())[staleness] += 1
        if time.monotonic() - self._sent_at >= _REPORT_S:
            self.send()

    def send(self) -> None:
        """Send what has not been sent yet."""
        self._sent_at = time.monotonic()
        for rank, rows in self._rows.items():
            send_message(self._context, f"worker-{rank}", StepsDone(rows=tuple(rows)))
        self._rows.clear()

    def facts(self, *, version: int, samples: int) -> ServerStats:
        """Return the servers' facts as far as the chief knows: the servers keep none."""
        updates = sum(count.total() for count in self._staleness.values())
        return ServerStats(
            server=0,
            version=version,
            samples=samples,
            pushes=updates,
            applied=updates,
            dropped=0,
            lost=0,
            gathered=0,
            repeated=0,
            refused=0,
            staleness={
                rank: StalenessStats(dict(sorted(count.items())))
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


class TicketLoop:
    """Drive the chief through a phase, with the network's variables on the servers."""

    def __init__(
        self,
        context: WorkerContext,
        dataset: Dataset,
        *,
        network: Network,
        dispatcher: TicketDispatcher,
        run_state: RunState,
        checkpoints: NetworkCheckpoints,
        ramp: Ramp | None,
    ) -> None:
        self._context = context
        self._job = context.job
        self._dataset = dataset
        self._network = network
        self._dispatcher = dispatcher
        self._run_state = run_state
        self._checkpoints = checkpoints
        self._rate = Rate(self._job, samples_per_epoch=dataset.epoch_samples, ramp=ramp)
        alone = context.serving.lr_scaling == "none"
        self._rate_share = 1.0 if alone else 1.0 / self._job.workers
        num_steps = -(-dataset.train.num_samples // self._job.global_batch)
        self._plan = TicketPlan(num_parts=self._job.workers, num_steps=num_steps)
        self._reports = StepReports(context)
        self._lr = 0.0
        self._dispatched = run_state.position.updates
        self.evaluations = EpochEvaluations(
            context, network, run_state=run_state, checkpoints=checkpoints
        )

    def advance(self, limit: StepLimit | None) -> None:
        """Train until the job is over, or until the limit."""
        state = self._run_state
        while not state.is_over and not state.is_at(limit):
            self._train_stretch(limit)
            if state.is_at_end_of_epoch:
                self._end_epoch()
            elif not state.is_at(limit):
                self._checkpoints.save(state.position, self._network.state())
        self.evaluations.wait()

    def facts(self) -> ServerStats:
        """Return the servers' facts."""
        position = self._run_state.position
        return self._reports.facts(version=position.updates, samples=position.samples)

    def _train_stretch(self, limit: StepLimit | None) -> None:
        """Train up to the end of the epoch, the next checkpoint, or the limit."""
        position = self._run_state.position
        self._mark("begin")
        begin = time.perf_counter()
        waiting: deque[tuple[_Ticket, PendingTicket]] = deque()
        for ticket in self._tickets(self._stop(limit)):
            waiting.append((ticket, self._dispatch(ticket)))
            while len(waiting) >= _AHEAD * self._job.workers:
                self._take(*waiting.popleft())
        # Variables are read for checkpoint or evaluation only after all tickets are done.
        while waiting:
            self._take(*waiting.popleft())
        position.train_s += time.perf_counter() - begin
        self._reports.send()
        self._mark("end")

    def _stop(self, limit: StepLimit | None) -> int:
        position = self._run_state.position
        step = position.epoch_samples // self._job.global_batch
        every = self._job.checkpoint.every_steps
        stop = self._plan.num_steps
        if every is not None:
            stop = min(stop, step + every - step % every)
        if limit is not None and limit.epoch == position.epoch:
            stop = min(stop, limit.step)
        return stop

    def _tickets(self, stop: int) -> Iterator[_Ticket]:
        position = self._run_state.position
        epoch, samples = position.epoch, position.samples
        first = position.epoch_samples // self._job.global_batch
        plans: list[InputPlan] = [
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

    def _dispatch(self, ticket: _Ticket) -> PendingTicket:
        self._dispatched += 1
        return self._dispatcher.dispatch(
            ticket.rows, ticket.changes, lr=ticket.lr * self._rate_share, number=self._dispatched
        )

    def _take(self, ticket: _Ticket, pending: PendingTicket) -> None:
        while (done := pending.wait()) is None:
            # Its worker was lost between update and answer: train it once more.
            pending = self._dispatch(ticket)
        check_loss(done.loss_sum, step=ticket.number, rank=done.rank)
        self._run_state.count_step(len(ticket.rows))
        position = self._run_state.position
        position.epoch_loss_sum += done.loss_sum
        position.epoch_correct += done.num_correct
        self._lr = ticket.lr
        self._reports.add(done.rank, self._row(ticket, done), staleness=done.staleness)
        self.evaluations.poll()

    def _row(self, ticket: _Ticket, done: DoneTicket) -> StepRow:
        return StepRow(
            ticket=ticket.number,
            epoch=self._run_state.position.epoch,
            num_samples=len(ticket.rows),
            loss_sum=done.loss_sum,
            num_correct=done.num_correct,
            lr=ticket.lr,
            stamps=done.stamps,
            sent_bytes=4 * self._network.num_parameters,
        )

    def _mark(self, what: Literal["begin", "end"]) -> None:
        position = self._run_state.position
        mark = TrainingMark(
            what=what,
            epoch=position.epoch,
            total=self._dataset.train.num_samples,
            resumed=position.epoch_samples > 0,
        )
        self._context.metrics.activity = "training" if what == "begin" else "between epochs"
        for rank in range(self._job.workers):
            send_message(self._context, f"worker-{rank}", mark)

    def _end_epoch(self) -> None:
        position = self._run_state.position
        train = Measures.from_sums(
            position.epoch_loss_sum,
            position.epoch_correct,
            position.epoch_samples,
            duration_s=position.train_s,
            has_classes=self._dataset.is_classification,
        )
        self.evaluations.end_epoch(train, lr=self._lr)
