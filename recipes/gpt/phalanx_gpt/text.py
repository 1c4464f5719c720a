"""Make up sentences by a small grammar, and cut them into blocks of bytes."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

Part = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

_WHO = ["the worker", "a server", "the old machine", "every process", "no planner", "the chief"]
_DOES = ["waits for", "answers", "sends a gradient to", "forgets", "follows", "counts"]
_WHEN = ["at noon", "in the first epoch", "before the exchange", "after a long pause", "again"]


def sentences(seed: int, count: int) -> str:
    """Return so many sentences; equal seeds give equal text."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        text = f"{draw.choice(_WHO)} {draw.choice(_DOES)} {draw.choice(_WHO)}"
        found.append(f"{text} {draw.choice(_WHEN)}." if draw.random() < 0.6 else f"{text}.")
    return " ".join(found)


def blocks(text: str, length: int) -> Part:
    """Return blocks of bytes, and for each byte the next one."""
    tokens = np.frombuffer(text.encode(), dtype=np.uint8)
    rows = (len(tokens) - 1) // length
    inputs, targets = tokens[: rows * length], tokens[1 : rows * length + 1]
    return (
        inputs.reshape(rows, length).astype(np.int32),
        targets.reshape(rows, length).astype(np.int64),
    )


def build(length: int = 64, train: int = 3000, seed: int = 1) -> dict[str, Part]:
    """Return the parts of the data; a text of your own would be `data: my.txt`."""
    return {
        "train": blocks(sentences(seed, train), length),
        "validation": blocks(sentences(seed + 1, train // 10), length),
        "test": blocks(sentences(seed + 2, train // 10), length),
    }
