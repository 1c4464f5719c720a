"""Define what a script iterates over instead of its loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from phalanx.errors import EngineError
from phalanx.program.rows import count_rows, take_rows
from phalanx.program.source import IndexedSource

if TYPE_CHECKING:
    from phalanx.program.session import Driver, ScriptSession


class Feed:
    """The training batches of this worker; every `next` is where the run moves on.

    Args:
        session: Knows what the script has declared.
        driver: Gives the batches.
    """

    def __init__(self, session: ScriptSession, driver: Driver) -> None:
        self._session = session
        self._driver = driver
        self._is_open = False

    def __len__(self) -> int:
        """Batches of one pass."""
        return self._session.declared.source.num_batches

    @property
    def dataset(self) -> Any:
        """The data set of the loader."""
        return getattr(self._data.given, "dataset", None)

    @property
    def batch_size(self) -> int:
        """Rows of a usual batch, over all workers."""
        return self._session.declared.source.batch_size

    @property
    def _data(self) -> Any:
        return self._session.declared.data

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass.

        Raises:
            EngineError: The pass before has been left before its end.
        """
        if self._is_open:
            raise EngineError(
                "the script has left its loop over session.data() before the end and begins again, "
                "so that samples would be left out; shorten the loop by session.data(..., steps=N)"
            )
        self._session.begin()
        self._is_open = True
        return self._pass()

    def _pass(self) -> Iterator[Any]:
        while (batch := self._driver.next_batch()) is not None:
            yield batch.payload
        self._is_open = False


class EvaluationFeed:
    """The rows of this worker in data that is evaluated on; batches without any are left out."""

    def __init__(self, source: Any, driver: Driver, *, own: bool = False) -> None:
        self._source = source
        self._driver = driver
        self._own = own

    def __iter__(self) -> Iterator[Any]:
        cut = self._driver.cut
        source = self._source
        if cut.size == 1 or self._own:
            yield from source() if callable(source) else source
            return
        if (
            isinstance(source, DataLoader)
            and not isinstance(source.dataset, IterableDataset)
            and source.batch_sampler is not None
        ):
            # Only this worker's rows are read.
            opened = IndexedSource(source, None).open(0, cut=cut, seed=0, start_sample=0)
            yield from (one.payload for one in opened if one.num_rows)
            return
        for batch in source() if callable(source) else source:
            start, stop = cut.bounds(count_rows(batch))
            if stop > start:
                yield take_rows(batch, start, stop)
