"""Feed a framework's own training loop from a session: every pass over the data is an epoch.

Frameworks count epochs themselves and do not ask for a batch after the last one, so both are told
to the session here. For the adapters of this package; scripts with a loop of their own use
`session.epochs` and `session.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from phalanx.errors import EngineError
from phalanx.program.session import ScriptSession


class EpochFeed:
    """The training data of a script whose loop belongs to a framework.

    Args:
        session: Of the script.
        loader: Gives the global batches.
        epochs: Passes of the loop.
        steps: Updates of the only pass; None: as many as the loader has.
        accumulate: Batches of an update.
        count: What the loss of a batch is the mean over; None: its samples.
        on_end: Called at the end of each pass, when all workers are equal.
    """

    def __init__(
        self,
        session: ScriptSession,
        loader: Any,
        *,
        epochs: int,
        steps: int | None = None,
        accumulate: int = 1,
        count: Callable[[Any], Any] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.loader = loader
        self.epoch = 0
        self.num_drawn = 0
        """Batches of this epoch that the framework got, before it was resumed too."""
        self._length = steps * accumulate if steps is not None else len(loader)
        self._feed = session.data(loader, steps=steps, count=count)
        self._num_epochs = 1 if steps is not None else epochs
        self._epochs = session.epochs(self._num_epochs)
        self._pass: Iterator[Any] | None = None
        self._is_begun = False
        self._on_end = on_end

    def begin(self) -> int | None:
        """Begin an epoch before its first batch is asked for; None: there is no more.

        The state of a resumed run is there afterwards.
        """
        epoch = next(self._epochs, None)
        if epoch is not None:
            self.epoch = epoch
            self._is_begun = True
        return epoch

    def __len__(self) -> int:
        """Batches of one pass."""
        return self._length

    @property
    def dataset(self) -> Any:
        """The data set of the loader."""
        return self.loader.dataset

    @property
    def batch_size(self) -> int | None:
        """Rows of a global batch."""
        size: int | None = self.loader.batch_size
        return size

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch with the first batch; there is none after the last epoch."""
        self.end_pass()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        if not self._is_begun and self.begin() is None:
            return
        self._is_begun = False
        self._pass = iter(self._feed)
        for batch in self._pass:
            self.num_drawn += 1
            yield batch

    def settle(self) -> None:
        """End the pass if its last batch has been drawn; called after the step of an optimiser.

        Workers are equal then, so that what follows, such as an evaluation, is right on each.
        """
        if self.num_drawn >= self._length:
            self.end_pass()

    def end_pass(self) -> None:
        """End the pass.

        Raises:
            EngineError: There are batches left.
        """
        if self._pass is None:
            return
        if next(self._pass, None) is not None:
            raise EngineError(
                f"the training loop was left after {self.num_drawn} of {self._length} batches of "
                "an epoch; every sample of an epoch is used once, so stop at the end of one, or "
                "limit the run by its number of steps"
            )
        self._pass = None
        self.num_drawn = 0
        if self._on_end is not None:
            self._on_end()

    def finish(self) -> None:
        """End the loop over epochs, if it has come to its end; an earlier end needs no word."""
        self.end_pass()
        if self.epoch + 1 >= self._num_epochs:
            next(self._epochs, None)

    def state_dict(self) -> dict[str, int]:
        """Return the place within the epoch."""
        return {"num_drawn": self.num_drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a place within an epoch."""
        self.num_drawn = state["num_drawn"]
