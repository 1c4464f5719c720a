"""Give each part of a network a separate random stream.

The engine seeds torch's generator once for each step; the seed of each part follows from that, so
neither the machine nor the order in which parts run matters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = 2**64 - 1
# The generator is global to the process; ranks that run as threads take turns.
_TURN = threading.RLock()


def part_seed(step_seed: int, part: int, *, replica: int = 0, micro_batch: int = 0) -> int:
    """Return the seed of one part in one step, for one of its holders and one micro-batch."""
    word = (part << 40) ^ (replica << 20) ^ micro_batch
    mixed = (step_seed ^ (word * 0x9E3779B97F4A7C15)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 31)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw from a stream inside the block."""
    with _TURN:
        torch.default_generator.manual_seed(seed)
        yield
