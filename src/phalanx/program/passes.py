"""Begin passes over what a script gave to `session.data`, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from phalanx.errors import DataError, SpecError
from phalanx.program.rows import count_rows


@dataclass
class Passes:
    """Something that yields batches.

    Attributes:
        given: What the script gave.
        begin: Begins a pass.
        restarts: Whether it can be called more than once.
        batch_size: Rows of a usual batch.
    """

    given: object
    begin: Callable[[], Iterator[object]]
    restarts: bool
    batch_size: int

    @classmethod
    def over(cls, source: Any, *, has_steps: bool) -> Passes:
        """Read what the script gave.

        Raises:
            SpecError: It cannot be read in batches, or has no length where one is needed.
            DataError: It is empty.
        """
        if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
            raise SpecError(
                "session.data() got a Dataset, which does not say how many samples are a batch; "
                "wrap it in a DataLoader"
            )
        begin: Callable[[], Iterator[object]]
        if callable(source):
            begin, restarts = (lambda: iter(source())), True
        elif isinstance(source, Iterator):
            begin, restarts = (lambda: source), False
        elif isinstance(source, Iterable):
            begin, restarts = (lambda: iter(source)), True
        else:
            raise SpecError(
                f"session.data() got {type(source).__name__}; give a DataLoader, an iterable of "
                "batches, or a function that returns one"
            )
        if not has_steps:
            length_of(source)
        known = source.batch_size if isinstance(source, DataLoader) else None
        if known is not None:
            return cls(source, begin, restarts, known)
        head = list(islice(begin(), 1))
        if not head:
            raise DataError("the stream given to session.data() has no batch")
        # A generator cannot be begun again: its first batch is put back.
        whole = begin if restarts else (lambda: chain([head.pop()] if head else (), begin()))
        return cls(source, whole, restarts, count_rows(head[0]))

    def length(self) -> int:
        """Return the batches of one pass."""
        return length_of(self.given)


def begin_epoch(source: object, epoch: int) -> None:
    """Tell a loader's samplers the epoch, where they ask for it."""
    for owner in (source, getattr(source, "sampler", None), getattr(source, "batch_sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def length_of(source: Any) -> int:
    """Return the batches of one pass.

    Raises:
        SpecError: They are not known.
    """
    try:
        return len(source)
    except TypeError:
        raise SpecError(
            f"session.data() got a {type(source).__name__} without a length; say how many updates "
            "the loop makes, as in session.data(loader, steps=1000)"
        ) from None
