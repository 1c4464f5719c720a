"""Names for the parts of a step, for the profiler to see; free while nobody profiles.

An operator alone does not say what it was for: an addition may be the model's, the optimiser's or
the regulariser's. Whoever does a part of a step marks it with `span`; `worker.profile` turns the
marks on for the epochs that a job wants profiled. torch's own marks cost 8 µs each even when no
profiler runs, which would be felt in short steps; these cost 0.2 µs then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from torch.autograd.profiler import record_function

PREFIX = "phalanx::"
"""What the profiler shows before the name of a span."""

Item = TypeVar("Item")
_NOTHING: AbstractContextManager[object] = nullcontext()
_END = object()


class _Switch:
    on = False


def span(name: str) -> AbstractContextManager[object]:
    """Mark what is done inside the block, such as `forward`, `apply` or `all_reduce`."""
    return record_function(PREFIX + name) if _Switch.on else _NOTHING


def spanned(name: str, items: Iterable[Item]) -> Iterator[Item]:
    """The same items; the time that each takes to come is marked."""
    source = iter(items)
    while True:
        with span(name):
            item = next(source, _END)
        if item is _END:
            return
        yield item  # type: ignore[misc]  # _END never gets here


@contextmanager
def spans_on() -> Iterator[None]:
    """Let spans be seen inside the block, in all threads of this process."""
    _Switch.on = True
    try:
        yield
    finally:
        _Switch.on = False
