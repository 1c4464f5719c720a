"""Where a part's random numbers come from: a stream of its own for each part of a network.

The engine sets torch's generator once for each step; from that seed each part's own follows, so it
does not matter on which machine, or after which other parts, a part runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = 2**64 - 1
# The generator is the process's; ranks that run as threads of one process take turns.
_TURN = threading.RLock()


def part_seed(step_seed: int, part: int, *, replica: int = 0, micro_batch: int = 0) -> int:
    """The seed of one part in one step.

    Args:
        step_seed: Of the whole step.
        part: Its number in the network.
        replica: Which of several workers that hold it.
        micro_batch: Which piece of the batch.
    """
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
