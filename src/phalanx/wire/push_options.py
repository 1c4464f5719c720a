"""Encode what travels with a push beside the gradient: the options of the optimiser's groups.

A script changes them between two steps, by a scheduler or by hand, and clips as it likes; the
servers that make the step have to follow. Jobs send nothing: servers know their schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

OptionValue = bool | int | float | str | None | tuple[float, ...]
"""What can be sent of an option; others stay as they were when the optimiser was made."""


_NOT_OPTIONS = ("params", "param_names")


class PushOptions(msgspec.Struct, frozen=True):
    """The options of one update.

    Attributes:
        groups: Options of each parameter group, `lr` among them.
        clip_norm: Largest norm of the whole gradient; None: it is not clipped.
    """

    groups: tuple[dict[str, OptionValue], ...]
    clip_norm: float | None = None

    @classmethod
    def of(
        cls, groups: Sequence[Mapping[str, object]], clip_norm: float | None = None
    ) -> PushOptions:
        """Take what can be sent of the groups of a torch optimiser."""
        return cls(
            tuple(
                {
                    key: _plain(value)
                    for key, value in group.items()
                    if key not in _NOT_OPTIONS and _is_plain(_number(value))
                }
                for group in groups
            ),
            clip_norm,
        )

    @property
    def rate(self) -> float:
        """The learning rate of the first group; 1: it has none."""
        rate = self.groups[0].get("lr") if self.groups else None
        return float(rate) if isinstance(rate, int | float) else 1.0

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        return msgspec.msgpack.encode(self)


@lru_cache(maxsize=64)
def decode_options(data: bytes) -> PushOptions:
    """Return the options in these bytes, the same object for the same bytes.

    Raises:
        ValueError: They are none.
    """
    try:
        found = msgspec.msgpack.decode(data, type=PushOptions)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not the options of a push: {error}") from error
    clip = found.clip_norm
    if not math.isfinite(found.rate) or (clip is not None and not clip > 0):
        raise ValueError("a learning rate or a limit that is no number")
    return found


def _number(value: object) -> object:
    # A rate may be a tensor of one number.
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(one, int | float) for one in map(_number, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: object) -> OptionValue:
    value = _number(value)
    if isinstance(value, list | tuple):
        return tuple(float(one) for one in map(_number, value))  # type: ignore[arg-type]
    assert value is None or isinstance(value, bool | int | float | str)
    return value
