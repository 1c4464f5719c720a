"""Schedule evaluations and checkpoints of epochs, while training goes on.

One at a time, as the native `EvaluationScheduler` does: read, evaluate, save. Results belong to the
moment that was read; only early stopping waits for them. Here the chief reads the variables and
saves them itself, so only an evaluation can be lost.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass

import msgspec

from phalanx.backends.tensorflow.checkpoints import NetworkCheckpoints
from phalanx.backends.tensorflow.evaluator import STATE_FILE
from phalanx.backends.tensorflow.messages import (
    EvaluatePart,
    EvaluatorPresent,
    PartEvaluated,
    decode_message,
    send_message,
)
from phalanx.backends.tensorflow.network import Network, without_optimizer
from phalanx.records.improvement import may_stop
from phalanx.records.measures import Measures
from phalanx.records.position import Position
from phalanx.store.numpy_tensors import Arrays, NumpyAdapter
from phalanx.wire.relay import FromProcess
from phalanx.worker.context import WorkerContext
from phalanx.worker.run_state import RunState

EVALUATOR = "evaluator-0"


@dataclass(frozen=True)
class _Snapshot:
    number: int
    part: str
    position: Position
    train: Measures | None
    lr: float
    regularisation: float
    state: Arrays


class EpochEvaluations:
    """Evaluations of one phase, scheduled by the chief."""

    def __init__(
        self,
        context: WorkerContext,
        network: Network,
        *,
        run_state: RunState,
        checkpoints: NetworkCheckpoints,
    ) -> None:
        self._context = context
        self._job = context.job
        self._network = network
        self._run_state = run_state
        self._checkpoints = checkpoints
        self._store = context.open_store(NumpyAdapter())
        self._number = 0
        self._open: _Snapshot | None = None
        self._is_present = False
        self._test: Measures | None = None

    def end_epoch(self, train: Measures, *, lr: float) -> None:
        """Have a finished epoch evaluated, reported and saved; training may go on."""
        self.wait()
        live = self._run_state.position
        validates = self._run_state.is_validation_due
        snapshot = self._take_snapshot("validation" if validates else "", train, lr)
        # The run goes on from here; the evaluation's result is added when it is known.
        live.begin_next_epoch()
        if validates:
            self._request(snapshot)
        else:
            self._conclude(snapshot, None)
        if may_stop(self._job, live.epoch) or live.epoch >= self._job.epochs:
            self.wait()

    def test(self) -> Measures | None:
        """Evaluate the test part, if the job wants that; the run is over."""
        self.wait()
        if not self._run_state.is_test_due:
            return None
        self._request(self._take_snapshot("test", None, 0.0))
        self.wait()
        self._store.drop([STATE_FILE])
        return self._test

    def poll(self) -> None:
        """Take the evaluator's answers so far."""
        while True:
            try:
                message = self._context.control.inbox.get_nowait()
            except queue.Empty:
                return
            self._take(message)

    def wait(self) -> None:
        """Wait until no evaluation is under way.

        No deadline: the controller replaces an evaluator that is lost or frozen, and the lifelines
        end this process with the run.
        """
        while self._open is not None:
            self._take(self._context.control.inbox.get())

    def _take_snapshot(self, part: str, train: Measures | None, lr: float) -> _Snapshot:
        self._number += 1
        return _Snapshot(
            number=self._number,
            part=part,
            position=msgspec.structs.replace(self._run_state.position),
            train=train,
            lr=lr,
            regularisation=self._network.regularisation(),
            state=self._network.state(),
        )

    def _request(self, snapshot: _Snapshot) -> None:
        self._open = snapshot
        # Written before the request: an evaluator that is asked, or restarted, finds this state.
        self._store.save(STATE_FILE, without_optimizer(snapshot.state), {})
        if self._is_present:
            self._send(snapshot)

    def _send(self, snapshot: _Snapshot) -> None:
        order = EvaluatePart(number=snapshot.number, part=snapshot.part)
        send_message(self._context, EVALUATOR, order)

    def _take(self, message: object) -> None:
        if not isinstance(message, FromProcess):
            return
        snapshot = self._open
        match decode_message(message):
            case EvaluatorPresent():
                self._is_present = True
                # A restarted evaluator does not know its predecessor's request: repeat it.
                if snapshot is not None:
                    self._send(snapshot)
            # An answer to a request that was repeated may come twice.
            case PartEvaluated(number, measures) if snapshot and number == snapshot.number:
                self._open = None
                if snapshot.part == "test":
                    self._test = measures
                    self._run_state.note_evaluation("test", measures)
                else:
                    self._conclude(snapshot, measures)

    def _conclude(self, snapshot: _Snapshot, validation: Measures | None) -> None:
        """Report a fully evaluated state; save it if that is due."""
        assert snapshot.train is not None
        run_state = self._run_state
        live, then = run_state.position, snapshot.position
        then.evaluate_s = live.evaluate_s
        run_state.position = then
        try:
            end = run_state.end_epoch(
                snapshot.train, validation, regularisation=snapshot.regularisation, lr=snapshot.lr
            )
            if end.save:
                self._checkpoints.save(then, snapshot.state, best=end.is_best)
        finally:
            run_state.position = live
        live.take_validation(then)
        live.train_loss, live.train_accuracy = then.train_loss, then.train_accuracy
        live.evaluate_s = then.evaluate_s
