"""What only the chief can do, and all workers of a group wait for: reading and writing files.

The chief may need longer than the deadline of an exchange, so the others do not wait in one: they
meet every few seconds until the chief is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.errors import StoreError
from phalanx.worker.background import Background

# Between two meetings; well below the deadline of an exchange.
_ROUND_S = 2.0
# A deadline is for one exchange: large tensors go in several.
_BROADCAST_BYTES = 1 << 24


@dataclass(frozen=True)
class Item:
    """What the chief read: a few words, and tensors by name."""

    words: dict[str, str]
    tensors: dict[str, torch.Tensor]


class _Note(msgspec.Struct):
    """What the chief tells the others before any tensor."""

    words: dict[str, str] | None
    tensors: list[tuple[str, str, list[int]]]
    refusal: str | None = None


def wait_together(collective: Collective, is_done: Callable[[float], bool]) -> None:
    """Wait until the chief is done; all workers call it together.

    Args:
        collective: The group.
        is_done: Asked on the chief; may wait for so many seconds.
    """
    going = torch.ones(1)
    while going.item() > 0:
        done = collective.rank != 0 or is_done(_ROUND_S)
        going.fill_(0.0 if done else 1.0)
        collective.all_reduce(going, "max")


def read_together(collective: Collective, read: Callable[[], Item | None]) -> Item | None:
    """Let the chief read something, and every worker have it; all call it together.

    Args:
        collective: The group.
        read: Called on the chief only, in another thread; None: there is nothing to read.

    Raises:
        Exception: On the chief: what the reading broke off with. On the others `StoreError`.
    """
    if collective.size == 1:
        return read()
    found: list[Item | None] = []
    refusal: Exception | None = None
    reading = Background("reading")
    if collective.rank == 0:
        reading.start(lambda: found.append(read()))

    def is_done(limit_s: float) -> bool:
        nonlocal refusal
        try:
            return reading.wait(limit_s)
        except Exception as error:  # told to the others first, then raised
            refusal = error
            return True

    wait_together(collective, is_done)
    item = found[0] if found else None
    note = _exchange_note(collective, item, refusal)
    if refusal is not None:
        raise refusal
    if note.refusal is not None:
        raise StoreError(note.refusal)
    if note.words is None:
        return None
    if item is None:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in note.tensors
        }
        item = Item(note.words, tensors)
    for name, _, _ in note.tensors:
        _broadcast(collective, item.tensors[name])
    return item


def _exchange_note(collective: Collective, item: Item | None, refusal: Exception | None) -> _Note:
    tensors = item.tensors if item is not None else {}
    own = _Note(
        words=item.words if item is not None else None,
        tensors=[
            (name, str(one.dtype).removeprefix("torch."), list(one.shape))
            for name, one in tensors.items()
        ],
        refusal=str(refusal) if refusal is not None else None,
    )
    text = msgspec.msgpack.encode(own)
    length = torch.tensor([len(text)])
    collective.broadcast(length)
    content = torch.zeros(int(length.item()), dtype=torch.uint8)
    if collective.rank == 0:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    collective.broadcast(content)
    return msgspec.msgpack.decode(content.numpy().tobytes(), type=_Note)


def _broadcast(collective: Collective, tensor: torch.Tensor) -> None:
    content = tensor.reshape(-1).view(torch.uint8)
    for start in range(0, len(content), _BROADCAST_BYTES):
        collective.broadcast(content[start : start + _BROADCAST_BYTES])
