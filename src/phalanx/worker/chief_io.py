"""Let the chief read or write files while the other workers of its group wait.

Files may take longer than the deadline of an exchange, so the others take part in a short exchange
every few seconds until the chief is done.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.errors import StoreError
from phalanx.store.tensors import TensorBundle
from phalanx.worker.checkpoint.async_checkpointer import BackgroundTask

# Between two exchanges; well below the deadline of one.
_ROUND_S = 2.0
# A deadline is for one exchange, so large tensors are broadcast in several.
_BROADCAST_BYTES = 1 << 24

ChiefData = TensorBundle[torch.Tensor]
"""Texts and tensors by name, read by the chief for all."""


class _Header(msgspec.Struct):
    """Broadcast by the chief before any tensor; `metadata` is None if it read nothing."""

    metadata: dict[str, str] | None
    tensors: list[tuple[str, str, list[int]]]
    error: str | None = None


def wait_for_chief(collective: Collective, is_done: Callable[[float], bool]) -> None:
    """Wait until the chief is done; all workers call it together.

    Args:
        collective: The group.
        is_done: Called on the chief; may wait for the given seconds.
    """
    going = torch.ones(1)
    while going.item() > 0:
        done = collective.rank != 0 or is_done(_ROUND_S)
        # The others always vote done, so the maximum is the chief's answer.
        going.fill_(0.0 if done else 1.0)
        collective.all_reduce(going, "max")


def broadcast_from_chief(
    collective: Collective, read: Callable[[], ChiefData | None]
) -> ChiefData | None:
    """Read something on the chief and give it to every worker; all call it together.

    Args:
        collective: The group.
        read: Called on the chief only, in another thread; None: there is nothing to read.

    Raises:
        Exception: On the chief the error of `read`, on the others a `StoreError` with its text.
    """
    if collective.size == 1:
        return read()
    found: list[ChiefData | None] = []
    failure: Exception | None = None
    reading = BackgroundTask("reading")
    if collective.rank == 0:
        reading.start(lambda: found.append(read()))

    def is_done(limit_s: float) -> bool:
        nonlocal failure
        try:
            return reading.wait(limit_s)
        except Exception as error:  # the thread's boundary: sent to the others, then raised
            failure = error
            return True

    wait_for_chief(collective, is_done)
    data = found[0] if found else None
    # Broadcast the error before raising it: the others would wait for tensors that never come.
    header = _broadcast_header(collective, data, failure)
    if failure is not None:
        raise failure
    if header.error is not None:
        raise StoreError(header.error)
    if header.metadata is None:
        return None
    if data is None:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in header.tensors
        }
        data = TensorBundle(header.metadata, tensors)
    for name, _, _ in header.tensors:
        _broadcast(collective, data.tensors[name])
    return data


def _broadcast_header(
    collective: Collective, data: ChiefData | None, failure: Exception | None
) -> _Header:
    tensors = data.tensors if data is not None else {}
    own = _Header(
        metadata=data.metadata if data is not None else None,
        tensors=[
            (name, str(one.dtype).removeprefix("torch."), list(one.shape))
            for name, one in tensors.items()
        ],
        error=str(failure) if failure is not None else None,
    )
    text = msgspec.msgpack.encode(own)
    length = torch.tensor([len(text)])
    collective.broadcast(length)
    content = torch.zeros(int(length.item()), dtype=torch.uint8)
    if collective.rank == 0:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    collective.broadcast(content)
    return msgspec.msgpack.decode(content.numpy().tobytes(), type=_Header)


def _broadcast(collective: Collective, tensor: torch.Tensor) -> None:
    content = tensor.reshape(-1).view(torch.uint8)
    for start in range(0, len(content), _BROADCAST_BYTES):
        collective.broadcast(content[start : start + _BROADCAST_BYTES])
