"""Run a script by itself: `python script.py`. The same batches in the same order, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from phalanx.errors import EngineError
from phalanx.program.seeds import seed_batch, session_seed
from phalanx.program.source import BatchCut, MicroBatch

if TYPE_CHECKING:
    from phalanx.program.session import ScriptSession


class StandaloneDriver:
    """Drive a script in one process, as if Phalanx were not there."""

    session: ScriptSession

    def __init__(self) -> None:
        self.cut = BatchCut()
        self._epoch = -1
        self._batches: Iterator[MicroBatch] | None = None
        self._num_drawn = 0
        self._seed = 0
        self._passed = -1

    def next_epoch(self) -> int | None:
        """Count the epochs."""
        self._epoch += 1
        count = self.session.declared.epochs
        return self._epoch if count is not None and self._epoch < count else None

    def next_batch(self) -> MicroBatch | None:
        """Return the next batch, whole."""
        declared = self.session.declared
        if self._batches is None:
            if self._num_drawn == 0:
                self._seed = session_seed()
            self._refuse_second_pass()
            epoch = max(0, self._epoch)
            self._batches = declared.source.open(
                epoch, cut=self.cut, seed=self._seed, start_sample=0
            )
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
            self._passed = max(0, self._epoch)
            return None
        step, index = divmod(self._num_drawn, declared.accumulate)
        seed_batch(self._seed, 0, step, index)
        self._num_drawn += 1
        return batch

    def _refuse_second_pass(self) -> None:
        if self._passed == max(0, self._epoch):
            raise second_pass()

    def step(self, index: int, apply: Callable[[], Any]) -> Any:
        """Make the step."""
        return apply()

    def total(self, values: list[float]) -> list[float]:
        """Return the values: there is no other worker."""
        return values


def second_pass() -> EngineError:
    """Make the error of a script that reads its training data twice in an epoch."""
    return EngineError(
        "the script reads session.data() a second time in the same epoch; loop over epochs by "
        "'for epoch in session.epochs(n)', or over more updates by session.data(..., steps=N)"
    )
