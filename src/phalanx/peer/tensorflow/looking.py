"""Having the state at the end of an epoch measured and saved, while training goes on.

One look at a time. What it finds belongs to the moment at which it was begun, whatever training has
done since; only early stopping has to wait for it.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass

import msgspec

from phalanx.data.pipeline import Dataset
from phalanx.peer.tensorflow.book import Book, Measures
from phalanx.peer.tensorflow.evaluator import LOOK_FILE
from phalanx.peer.tensorflow.network import Network, without_optimizer
from phalanx.peer.tensorflow.talk import Answer, Ask, Present, tell, understand
from phalanx.records.improvement import may_stop
from phalanx.records.position import Position
from phalanx.store.numpy_tensors import Arrays, NumpyAdapter
from phalanx.wire.peers import Relayed
from phalanx.worker.station import Station

EVALUATOR = "evaluator-0"
# What a look adds to the position of the run.
_FOUND = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "best_value",
    "stale_epochs",
    "stopped_early",
    "evaluate_s",
)


@dataclass(frozen=True)
class _Look:
    """A moment that is being looked at."""

    number: int
    part: str
    position: Position
    train: Measures | None
    lr: float
    regularisation: float
    state: Arrays


class Looking:
    """The looks of one phase, as the chief knows them.

    Args:
        station: Of the chief.
        dataset: Says what there is to measure.
        network: Whose state is looked at.
        book: The run so far.
    """

    def __init__(self, station: Station, dataset: Dataset, network: Network, book: Book) -> None:
        self._station = station
        self._job = station.job
        self._dataset = dataset
        self._network = network
        self._book = book
        self._store = station.open_store(NumpyAdapter())
        self._number = 0
        self._look: _Look | None = None
        self._is_present = False
        self._test: Measures | None = None

    def begin(self, train: Measures, *, lr: float) -> None:
        """An epoch is over: have it measured, told and saved."""
        self.wait()
        live = self._book.position
        validates = self._book.validates and self._dataset.validation.num_samples > 0
        look = self._make("validation" if validates else "", train, lr)
        # The run goes on from here; what the look finds is added when it is known.
        live.epoch += 1
        live.epoch_samples = live.epoch_correct = 0
        live.epoch_loss_sum = 0.0
        if validates:
            self._ask(look)
        else:
            self._conclude(look, None)
        if may_stop(self._job, live.epoch) or live.epoch >= self._job.epochs:
            self.wait()

    def test(self) -> Measures | None:
        """Measure the test part, if the job wants that; the run is over."""
        self.wait()
        if self._job.evaluate == "never" or self._dataset.test.num_samples == 0:
            return None
        self._ask(self._make("test", None, 0.0))
        self.wait()
        self._store.drop([LOOK_FILE])
        return self._test

    def attend(self) -> None:
        """Take what the evaluator has said meanwhile."""
        while True:
            try:
                word = self._station.control.inbox.get_nowait()
            except queue.Empty:
                return
            self._take(word)

    def wait(self) -> None:
        """Wait until nothing is being looked at.

        The controller replaces an evaluator that is lost or frozen, and the lifelines end this
        process with the run: an evaluation takes as long as it takes.
        """
        while self._look is not None:
            self._take(self._station.control.inbox.get())

    def _make(self, part: str, train: Measures | None, lr: float) -> _Look:
        self._number += 1
        return _Look(
            number=self._number,
            part=part,
            position=msgspec.structs.replace(self._book.position),
            train=train,
            lr=lr,
            regularisation=self._network.regularisation(),
            state=self._network.state(),
        )

    def _ask(self, look: _Look) -> None:
        self._look = look
        self._store.save(LOOK_FILE, without_optimizer(look.state), {})
        if self._is_present:
            tell(self._station, EVALUATOR, Ask(look=look.number, part=look.part))

    def _take(self, word: object) -> None:
        if not isinstance(word, Relayed):
            return
        match understand(word):
            case Present():
                self._is_present = True
                if self._look is not None:
                    tell(
                        self._station, EVALUATOR, Ask(look=self._look.number, part=self._look.part)
                    )
            case Answer() as answer if self._look is not None and answer.look == self._look.number:
                look, self._look = self._look, None
                measures = Measures(
                    loss=answer.loss,
                    accuracy=answer.accuracy,
                    num_samples=answer.num_samples,
                    duration_s=answer.duration_s,
                )
                if look.part == "test":
                    self._test = measures
                    self._book.note_evaluation("test", measures)
                else:
                    self._conclude(look, measures)

    def _conclude(self, look: _Look, validation: Measures | None) -> None:
        """All is known of the moment: tell it, judge it, and write it down if that is due."""
        assert look.train is not None
        live = self._book.position
        then = look.position
        then.evaluate_s = live.evaluate_s
        self._book.position = then
        try:
            save, best = self._book.end_epoch(
                look.train, validation, regularisation=look.regularisation, lr=look.lr
            )
            if save:
                self._book.save(look.state, order=self._network.order, best=best)
        finally:
            self._book.position = live
        for field in _FOUND:
            setattr(live, field, getattr(then, field))
