"""The training loop: batches in, steps through the strategy, measures and checkpoints out.

The same loop serves every strategy. All workers run it in lockstep as far as epochs, evaluations
and checkpoints go; what happens inside a step is the strategy's business.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch, Dataset, train_batches
from phalanx.engine.schedule import learning_rate
from phalanx.engine.spans import spanned
from phalanx.observe.sampler import Sampler
from phalanx.records import events
from phalanx.records.improvement import note_validation
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.strategy.base import Strategy
from phalanx.wire.control import ControlClient
from phalanx.wire.messages import EpochDone, EpochReport, Outcome, WorkTimes
from phalanx.wire.phases import Limit
from phalanx.worker.checkpoint import NEWEST
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.checkpoint.state import collect_state, restore_state
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief, wait_for_chief
from phalanx.worker.council import Council
from phalanx.worker.evaluate import Measures, Share, evaluate, judge_of, reduce_measures
from phalanx.worker.inject import Slowdown
from phalanx.worker.learner import Learner
from phalanx.worker.profile import EpochProfiler
from phalanx.worker.steps import record_standstill, record_step
from phalanx.worker.tally import Tally


@dataclass(frozen=True)
class Reporting:
    """Where a worker's facts go."""

    log: EventLog
    control: ControlClient
    tally: Tally
    profiler: EpochProfiler
    sampler: Sampler
    run: RunDir


@dataclass(frozen=True)
class Trainee:
    """What is trained, and with whom."""

    dataset: Dataset
    replica: Learner
    strategy: Strategy
    collective: Collective
    share: Share | None = None
    """Whose samples this worker takes; None: its own."""


class TrainLoop:
    """One worker's way through a job.

    Args:
        job: What is to be done.
        trainee: Data, replica, strategy (attached already) and group.
        checkpointer: Writes the chief's checkpoints.
        reporting: Where facts go.
        position: Where to begin; None: at the beginning of the job.
        council: Where the workers agree now and then whether to end the phase; None: they do not.
        slowdown: What the job injects into this worker, as it stands from earlier phases.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        trainee: Trainee,
        checkpointer: AsyncCheckpointer,
        reporting: Reporting,
        position: Position | None = None,
        council: Council | None = None,
        slowdown: Slowdown | None = None,
    ) -> None:
        self._job = job
        self._dataset = trainee.dataset
        self._replica = trainee.replica
        self._strategy = trainee.strategy
        self._collective = trainee.collective
        self._share = trainee.share or Share(trainee.collective.rank, trainee.collective.size)
        self._checkpointer = checkpointer
        self._log = reporting.log
        self._control = reporting.control
        self._tally = reporting.tally
        self._profiler = reporting.profiler
        self._sampler = reporting.sampler
        self._run = reporting.run
        self._val_metrics: dict[str, float] = {}
        self._epoch_size = trainee.dataset.epoch_samples
        self._position = position or Position()
        self._position.num_workers = trainee.collective.size
        self._council = council
        self._slowdown = slowdown or Slowdown(job.inject, rank=trainee.collective.rank)

    @property
    def position(self) -> Position:
        """Where the run stands."""
        return self._position

    @property
    def is_over(self) -> bool:
        """Whether the job is done."""
        return self._position.epoch >= self._job.epochs or self._position.stopped_early

    @property
    def _is_chief(self) -> bool:
        return self._collective.rank == 0

    def restore(self, name: str = NEWEST) -> None:
        """Take up a checkpoint, all workers together: one reads it; with none, start anew."""
        found = broadcast_from_chief(self._collective, lambda: self._read(name))
        if found is None:
            self._log.record(
                events.Warned(message="no checkpoint yet: starting from the beginning")
            )
            return
        position = msgspec.json.decode(found.metadata["position"], type=Position)
        restore_state(found.tensors, self._replica, self._strategy, self._collective, self._tally)
        position.num_workers = self._collective.size
        self._position = position
        self._tally.step = position.updates
        self._record_as_chief(
            events.Resumed(
                path=found.metadata["path"], epoch=position.epoch, samples=position.samples
            )
        )

    def _read(self, name: str) -> ChiefData | None:
        # The newest may still be on its way.
        self._checkpointer.wait()
        checkpoints = self._checkpointer.checkpoints
        found = checkpoints.load(name)
        if found is None:
            return None
        position = msgspec.json.encode(found.position).decode()
        metadata = {"path": checkpoints.where(found.name), "position": position}
        return ChiefData(metadata, found.tensors)

    def advance(self, limit: Limit | None = None) -> None:
        """Train until the job is over, or until the limit, or until the workers agree to stop."""
        while not self.is_over and not self.is_at(limit):
            if not self._train_epoch(limit):
                return
            self._end_epoch()
            if self._council is not None and self._council.has_turned:
                return

    def leave(self, *, settle: bool) -> dict[str, torch.Tensor]:
        """End the phase here, all workers together; the state as a checkpoint would hold it.

        Args:
            settle: Whether all replicas must be one; otherwise each goes on from its own.
        """
        if settle:
            self._settle()
        self._sampler.mark("end")
        self._split_exchange_time()
        return self.state()

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint would hold now, live; all workers call it together."""
        return collect_state(self._replica, self._strategy, self._collective, self._tally)

    def conclude(self, *, precision: str, startup_s: float) -> Outcome:
        """Measure the test part; what the run came to, all of it written down."""
        test = None
        if self._job.evaluate != "never" and self._dataset.test.num_samples > 0:
            test = self._measure("test")
        self._checkpointer.wait()
        return self._outcome(test, precision=precision, startup_s=startup_s)

    def is_at(self, limit: Limit | None) -> bool:
        """Whether the limit is reached; in an epoch by whole steps."""
        if limit is None:
            return False
        step = -(-self._position.epoch_samples // self._job.global_batch)
        return (self._position.epoch, step) >= (limit.epoch, limit.step)

    def _train_epoch(self, limit: Limit | None) -> bool:
        """Train to the end of the epoch; False: stopped before it."""
        position, tally = self._position, self._tally
        tally.begin_epoch(
            position.epoch, total=self._epoch_size, resumed=position.epoch_samples > 0
        )
        tally.activity = "training"
        self._sampler.mark("begin")
        begin = time.perf_counter()
        with train_batches(
            self._dataset,
            spec=self._job.data,
            seed=self._job.seed,
            epoch=position.epoch,
            global_batch=self._job.global_batch,
            rank=self._share.rank,
            num_workers=self._share.num_workers,
            shares=self._job.batch.shares,
            start_sample=position.epoch_samples,
        ) as batches:
            self._profiler.enter(position.epoch)
            asked = time.perf_counter()
            for batch in spanned("input", batches):
                turn = self._step(batch, input_s=time.perf_counter() - asked)
                self._profiler.step_done()
                if self._mid_epoch_checkpoint_due():
                    position.train_s += time.perf_counter() - begin
                    self._write_checkpoint()
                    begin = time.perf_counter()
                if turn or self.is_at(limit):
                    break
                asked = time.perf_counter()
            self._profiler.leave()
        position.train_s += time.perf_counter() - begin
        return position.epoch_samples >= self._epoch_size

    def _step(self, batch: Batch, *, input_s: float) -> bool:
        """Train on one batch; True: the workers agreed to end the phase here."""
        position = self._position
        slept_s = self._slowdown.wait(position.samples / (self._epoch_size * self._job.epochs))
        lr = learning_rate(
            self._job.schedule,
            peak=self._job.optimizer.lr,
            samples_seen=position.samples,
            total_samples=self._epoch_size * self._job.epochs,
            samples_per_epoch=self._epoch_size,
        )
        facts = self._strategy.step(batch, lr=lr, step_index=position.updates)
        facts = self._slowdown.count(facts, slept_s)
        position.samples += batch.global_count
        position.epoch_samples += batch.global_count
        position.updates += 1
        record_step(
            self._log,
            self._tally,
            facts,
            epoch=position.epoch,
            step=position.updates,
            lr=lr,
            input_s=input_s,
            sent_bytes=self._collective.sent_bytes,
        )
        return self._council is not None and self._council.meet(facts, position, lr=lr)

    def _end_epoch(self) -> None:
        """Measure, record and save what the epoch came to."""
        position, tally = self._position, self._tally
        self._settle()
        self._sampler.mark("end")
        self._split_exchange_time()
        train = reduce_measures(
            self._collective,
            tally.epoch_loss_sum,
            tally.epoch_correct,
            tally.epoch_samples,
            duration_s=position.train_s,
        )
        position.train_loss, position.train_accuracy = train.loss, train.accuracy
        last = position.epoch + 1 == self._job.epochs
        if self._dataset.validation.num_samples > 0 and (
            self._job.evaluate == "epoch" or (self._job.evaluate == "end" and last)
        ):
            validation = self._measure("validation")
            position.val_loss, position.val_accuracy = validation.loss, validation.accuracy
            self._val_metrics = dict(validation.metrics)
        self._report_epoch()
        position.epoch += 1
        improved = note_validation(self._job, position)
        position.epoch_samples = 0
        every = self._job.checkpoint.every_epochs
        due = every is not None and (position.epoch % every == 0 or last)
        if due or improved or position.stopped_early:
            self._write_checkpoint(best=improved)

    def _settle(self) -> None:
        """Bring all replicas to one state; it is part of the training, and of its exchange."""
        begin = time.perf_counter()
        self._strategy.synchronize()
        if self._collective.size == 1:
            return
        duration_s = time.perf_counter() - begin
        self._position.train_s += duration_s
        record_standstill(
            self._log,
            self._tally,
            epoch=self._position.epoch,
            what="settle",
            duration_s=duration_s,
        )

    def _split_exchange_time(self) -> None:
        """Divide the time in exchanges into communication and waiting for others.

        The worker that arrives last at an exchange waits for nobody: its time is the communication,
        and what the others spent beyond it they waited.
        """
        tally = self._tally
        own = torch.tensor(tally.exchanges, dtype=torch.float64)
        shared = own.clone()
        self._collective.all_reduce(shared, "min")
        tally.wait_s += (own - shared).sum().item()
        tally.exchanges = []

    def _measure(self, part: str) -> Measures:
        self._tally.activity = f"measuring {part}"
        data = self._dataset.test if part == "test" else self._dataset.validation
        measures = evaluate(
            self._replica, self._collective, data, self._share, judge=judge_of(self._dataset)
        )
        self._position.evaluate_s += measures.duration_s
        self._record_as_chief(
            events.Evaluation(
                part=part,
                epoch=self._position.epoch,
                num_samples=measures.num_samples,
                loss=measures.loss,
                accuracy=measures.accuracy,
                duration_s=measures.duration_s,
                metrics=dict(measures.metrics),
            )
        )
        if part == "test" and self._is_chief and measures.verdicts is not None:
            self._run.write_verdicts(measures.verdicts)
        return measures

    def _record_as_chief(self, event: events.Event) -> None:
        """Facts about all workers together are written once."""
        if self._is_chief:
            self._log.record(event)

    def _report_epoch(self) -> None:
        position = self._position
        assert position.train_loss is not None
        assert position.train_accuracy is not None
        report = EpochReport(
            epoch=position.epoch,
            samples=position.samples,
            updates=position.updates,
            train_loss=position.train_loss,
            train_accuracy=position.train_accuracy,
            val_loss=position.val_loss,
            val_accuracy=position.val_accuracy,
            lr=self._tally.lr,
            train_s=position.train_s,
        )
        self._record_as_chief(
            events.Epoch(
                epoch=report.epoch,
                samples=report.samples,
                updates=report.updates,
                train_loss=report.train_loss,
                train_accuracy=report.train_accuracy,
                regularisation=self._replica.regularisation(),
                val_loss=report.val_loss,
                val_accuracy=report.val_accuracy,
                lr=report.lr,
                train_s=position.train_s,
                evaluate_s=position.evaluate_s,
            )
        )
        if self._is_chief:
            self._control.send(EpochDone(report))

    def _mid_epoch_checkpoint_due(self) -> bool:
        every = self._job.checkpoint.every_steps
        return (
            every is not None
            and self._position.updates % every == 0
            and self._position.epoch_samples < self._epoch_size
        )

    def _write_checkpoint(self, *, best: bool = False) -> None:
        begin = time.perf_counter()
        if self._position.epoch_samples > 0:
            self._strategy.synchronize()
        state = collect_state(self._replica, self._strategy, self._collective, self._tally)
        # The one before may still be on its way.
        wait_for_chief(self._collective, self._checkpointer.wait)
        if self._is_chief:
            self._checkpointer.save(self._position, state, best=best, begun=begin)

    def times(self) -> WorkTimes:
        """Where this worker's time went, once the job is over."""
        return self._tally.times(sent_bytes=self._collective.sent_bytes)

    def _outcome(self, test: Measures | None, *, precision: str, startup_s: float) -> Outcome:
        position = self._position
        parameters = self._replica.parameters
        return Outcome(
            precision=precision,
            parameters=parameters.numel(),
            epochs=position.epoch,
            samples=position.samples,
            updates=position.updates,
            train_s=position.train_s,
            evaluate_s=position.evaluate_s,
            startup_s=startup_s,
            stopped_early=position.stopped_early,
            train_loss=position.train_loss,
            train_accuracy=position.train_accuracy,
            regularisation=self._replica.regularisation(),
            val_loss=position.val_loss,
            val_accuracy=position.val_accuracy,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            val_metrics=self._val_metrics,
            test_metrics=dict(test.metrics) if test else {},
            parameters_sha256=hashlib.sha256(parameters.numpy().tobytes()).hexdigest(),
        )
