"""Sharing the cores of one machine out over its workers: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CoreShare:
    """The compute threads of one worker and the cores it is bound to (none: any)."""

    threads: int
    cpus: tuple[int, ...]


def share_cores(
    cores: Sequence[int], num_workers: int, *, threads: int | Literal["auto"], pin: bool
) -> list[CoreShare]:
    """Divide cores over workers.

    Each worker gets cores of its own if there are enough. If there are more workers than cores,
    they are bound round-robin, but only when the cores divide the workers evenly: otherwise the
    system's scheduler is fairer than any fixed binding.
    """
    per_worker = max(1, len(cores) // num_workers) if threads == "auto" else threads
    shares = []
    for worker in range(num_workers):
        cpus: tuple[int, ...] = ()
        if pin and per_worker * num_workers <= len(cores):
            cpus = tuple(cores[worker * per_worker : (worker + 1) * per_worker])
        elif pin and per_worker == 1 and num_workers % len(cores) == 0:
            cpus = (cores[worker % len(cores)],)
        shares.append(CoreShare(threads=per_worker, cpus=cpus))
    return shares
