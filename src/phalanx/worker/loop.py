"""Training loop of synchronous runs: batches, steps, evaluations and checkpoints.

Serves every strategy and every framework; imports none. All workers pass epochs, evaluations and
checkpoints together; the exchange inside a step belongs to the strategy, its computation to the
`Trainer`.

Work is done in units: a step, the end of an epoch, a checkpoint. What a unit changes counts when it
is complete, so that after a broken exchange `regroup` and `advance` go on with the same unit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic

from phalanx.records.measures import Measures
from phalanx.records.position import Position
from phalanx.wire.messages import RunOutcome, WorkTimes
from phalanx.wire.switch import StepLimit
from phalanx.worker.checkpoint import NEWEST
from phalanx.worker.context import WorkerContext
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.metrics import OpenExchanges, record_stall, record_step
from phalanx.worker.rate import Rate
from phalanx.worker.run_state import RecordEvent, RunState, UnsavedPoint
from phalanx.worker.trainer import BatchT, Trainer

if TYPE_CHECKING:
    from phalanx.worker.switch.window_stats import WindowStats


class TrainLoop(Generic[BatchT]):
    """Drive one worker through a job, or through one phase of it.

    Args:
        context: This process's place in the run.
        trainer: Trains the model, ready to step.
        position: Where to begin; None: at the beginning of the job.
        window: Window statistics, by which the workers agree to end the phase; None: none.
        slowdown: The injected slowdown, with its state from earlier phases.
    """

    def __init__(
        self,
        context: WorkerContext,
        trainer: Trainer[BatchT],
        *,
        position: Position | None = None,
        window: WindowStats | None = None,
        slowdown: InjectedSlowdown | None = None,
    ) -> None:
        job, dataset = context.job, trainer.dataset
        self._context = context
        self._trainer = trainer
        self._state = RunState(
            job,
            position or Position(),
            dataset=dataset,
            control=context.control,
            record=self._recorder,
            records_epochs=not trainer.is_elastic,
        )
        self._state.position.num_workers = trainer.num_workers
        self.unsaved: UnsavedPoint | None = None
        """The checkpoint that comes before the next step."""
        self._rate = Rate(job, samples_per_epoch=dataset.epoch_samples)
        self._slowdown = slowdown or InjectedSlowdown(job.inject, rank=trainer.rank)
        self._window = window

    @property
    def position(self) -> Position:
        """Where the run stands."""
        return self._state.position

    @property
    def is_over(self) -> bool:
        """Whether the job is done."""
        return self._state.is_over or self._trainer.has_ended

    def is_at(self, limit: StepLimit | None) -> bool:
        """Return whether the limit is reached; within an epoch by whole steps."""
        return self._state.is_at(limit)

    @property
    def _recorder(self) -> RecordEvent | None:
        # Facts about all workers together are written once.
        return self._context.log.record if self._trainer.rank == 0 else None

    def regroup(self, trainer: Trainer[BatchT], position: Position | None = None) -> None:
        """Go on with another group, from the unit that was broken off.

        Args:
            trainer: Of that group.
            position: Where the group stands, if this worker has taken another's state.
        """
        self._trainer = trainer
        self._state.position = position or self.position
        self._state.position.num_workers = trainer.num_workers
        self._state.set_recorder(self._recorder)
        metrics = self._context.metrics
        metrics.step = self.position.updates
        # The others may have made fewer: exchanges of another group cannot be compared.
        metrics.exchanges = OpenExchanges()

    def restore(self, name: str = NEWEST) -> None:
        """Restore a checkpoint, all workers together; without one, start from the beginning."""
        point = self._trainer.restore(name)
        self._state.resume(point)
        if point is not None:
            self._context.metrics.step = self.position.updates

    def advance(self, limit: StepLimit | None = None) -> None:
        """Train until the job is over, or until the limit, or until the workers agree to stop."""
        self._save_if_due()
        while not self.is_over and not self.is_at(limit):
            self._train_epoch(limit)
            if not self._state.is_at_end_of_epoch:
                return
            self._end_epoch()
            if self._window is not None and self._window.has_ended:
                return

    def leave(self, *, synchronize: bool) -> None:
        """End the phase here, all workers together.

        Args:
            synchronize: Whether all replicas must be one; otherwise each goes on from its own.
        """
        if synchronize:
            self._synchronize()
        self._context.sampler.mark("end")
        self._split_exchange_time()

    def conclude(self, *, precision: str, startup_s: float) -> RunOutcome:
        """Evaluate the test part; return and record the outcome of the run."""
        test = None
        if self._state.is_test_due:
            test = self._measure("test")
            if test is not None:
                self._state.note_evaluation("test", test)
            if test is not None and test.verdicts is not None and self._trainer.rank == 0:
                self._context.run.write_predictions(test.verdicts)
        outcome = self._state.outcome(
            self._trainer.model_figures(), test, precision=precision, startup_s=startup_s
        )
        self._trainer.finish()
        return outcome

    def times(self) -> WorkTimes:
        """Return the breakdown of this worker's time, once the job is over."""
        return self._context.metrics.times(sent_bytes=self._trainer.sent_bytes)

    def _train_epoch(self, limit: StepLimit | None) -> None:
        """Train to the end of the epoch, to the limit, or until the workers agree to stop."""
        position, metrics = self.position, self._context.metrics
        total = self._trainer.dataset.epoch_samples
        metrics.begin_epoch(position.epoch, total=total, resumed=position.epoch_samples > 0)
        metrics.activity = "training"
        self._context.sampler.mark("begin")
        begin = time.perf_counter()
        opened = self._trainer.batches(position.epoch, start_sample=position.epoch_samples)
        try:
            with opened as batches:
                self._trainer.profiler.enter(position.epoch)
                asked = time.perf_counter()
                for batch in batches:
                    phase_ends = self._step(batch, input_s=time.perf_counter() - asked)
                    if self.unsaved is not None:
                        # Time spent on checkpoints is not training time.
                        position.train_s += time.perf_counter() - begin
                        begin = time.perf_counter()
                        self._save_if_due()
                        begin = time.perf_counter()
                    if phase_ends or self.is_at(limit):
                        break
                    asked = time.perf_counter()
                self._trainer.profiler.leave()
        finally:
            # Also where an exchange breaks off, as the epoch may go on in another group.
            position.train_s += time.perf_counter() - begin

    def _step(self, batch: BatchT, *, input_s: float) -> bool:
        """Train on one batch; True: the workers agreed to end the phase here."""
        position, window = self.position, self._window
        slept_s = self._slowdown.wait(self._state.progress)
        own_lr = self._trainer.rate(position.samples)
        lr = self._rate(position.samples) if own_lr is None else own_lr
        facts = self._trainer.step(batch, lr=lr, step_index=position.updates)
        facts = self._slowdown.count(facts, slept_s)
        self._state.count_step(batch.global_count)
        record_step(
            self._context.log,
            self._context.metrics,
            facts,
            epoch=position.epoch,
            step=position.updates,
            lr=lr,
            input_s=input_s,
            sent_bytes=self._trainer.sent_bytes,
        )
        if self._context.metrics.exchanges.is_full:
            self._split_exchange_time()
        ends = window is not None and window.observe(facts, position, lr=lr)
        # After the window's exchange, which belongs to the window that is being profiled.
        self._trainer.profiler.step_done(input_s=input_s, exchange_s=facts.exchange_s)
        if self._state.is_mid_epoch_checkpoint_due:
            self.unsaved = UnsavedPoint(is_best=False)
        self._trainer.unit_done()
        return ends

    def _end_epoch(self) -> None:
        metrics, trainer = self._context.metrics, self._trainer
        # Evaluation and checkpoints need one state shared by all replicas: synchronize first.
        self._synchronize()
        self._context.sampler.mark("end")
        self._split_exchange_time()
        # All workers take part in each of these exchanges, in this order.
        sums = [metrics.epoch_loss_sum, metrics.epoch_correct, metrics.epoch_samples]
        *totals, weight = trainer.total([*sums, metrics.epoch_weight])
        train = Measures.from_sums(
            *totals,
            weight=weight,
            duration_s=self.position.train_s,
            has_classes=trainer.dataset.has_labels,
        )
        validation = self._measure("validation") if self._state.is_validation_due else None
        end = self._state.end_epoch(
            train, validation, regularisation=trainer.regularisation(), lr=metrics.lr
        )
        if end.save:
            self.unsaved = UnsavedPoint(end.is_best)
        trainer.unit_done()
        self._save_if_due()

    def _save_if_due(self) -> None:
        if self.unsaved is not None:
            self._trainer.save(self.position, best=self.unsaved.is_best)
            self.unsaved = None
            self._trainer.unit_done()

    def _synchronize(self) -> None:
        """Synchronize all replicas; counted as exchange time of the training."""
        begin = time.perf_counter()
        self._trainer.synchronize()
        if self._trainer.num_workers == 1:
            return
        duration_s = time.perf_counter() - begin
        self.position.train_s += duration_s
        record_stall(
            self._context.log,
            self._context.metrics,
            epoch=self.position.epoch,
            what="settle",
            duration_s=duration_s,
        )

    def _split_exchange_time(self) -> None:
        """Divide the time in exchanges into communication and waiting for others.

        The worker that arrives last at an exchange does not wait: its time is the communication,
        and what the others spent beyond it is waiting.
        """
        metrics = self._context.metrics
        own_s = metrics.exchanges.seconds
        shared_s = self._trainer.minimum(own_s)
        metrics.spent.wait_s += sum(own - least for own, least in zip(own_s, shared_s, strict=True))
        metrics.exchanges = OpenExchanges()

    def _measure(self, part: str) -> Measures | None:
        self._context.metrics.activity = f"measuring {part}"
        return self._trainer.measure(part)
