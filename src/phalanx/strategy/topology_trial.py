"""Choose the topology of a group's sums by measurement, once, before the first of them.

Every candidate sums what the strategy will, in messages of the same sizes; candidates take turns,
so that noise hits all alike. The slowest worker's median decides, and a candidate farther down the
table must gain a few per cent. All workers decide by the same figures. Times differ from run to
run, so the choice may, too; a checkpoint holds it, and a resumed run of as many workers keeps it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.spec.topology import TOPOLOGIES

_CHOICE = "topology"
# Bytes that a trial sums at most, as memory for them is needed besides the model.
_MOST_BYTES = 1 << 26
# Time of all trials, about: slow links are measured fewer times.
_TRIALS_S = 5.0
_MOST_ROUNDS = 5
_LEAST_GAIN = 1.03


class TopologyTrial:
    """Give a group the topology that its strategy asks for; `auto`: the one measured fastest.

    Args:
        name: The setting.
        collective: The workers.
    """

    def __init__(self, name: str, collective: Collective) -> None:
        self._collective = collective
        self._chosen: str | None = None
        self._note: str | None = None
        self._is_auto = name == "auto"
        self._is_due = self._is_auto and len(collective.topologies()) > 1
        collective.use_topology("direct" if self._is_auto else name)

    def settle(self, sizes: Sequence[int]) -> None:
        """Measure and choose, if that is due; all workers call it before the same sum.

        Args:
            sizes: Bytes of the sums that follow; none: nothing is summed, and nothing measured.
        """
        if not self._is_due or not sizes:
            return
        self._is_due = False
        names = self._collective.topologies()
        times_s = _measure(self._collective, names, _within(sizes))
        self._use(names[_fastest(times_s)])
        figures = ", ".join(
            f"{name} {1e3 * seconds:.1f} ms" for name, seconds in zip(names, times_s, strict=True)
        )
        self._note = f"topology auto: {self._chosen} is kept; the sums of a step took {figures}"

    def take_note(self) -> str | None:
        """Return what was chosen and why, once."""
        note, self._note = self._note, None
        return note

    def export_state(self) -> dict[str, Tensor]:
        """Return the choice, for a checkpoint."""
        if self._chosen is None:
            return {}
        return {_CHOICE: torch.tensor([self._collective.size, *self._chosen.encode()])}

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Keep the choice of a checkpoint, if it was made for as many workers."""
        if not self._is_auto or _CHOICE not in state:
            return
        size, *letters = state[_CHOICE].tolist()
        name = bytes(letters).decode(errors="replace")
        if size == self._collective.size and name in TOPOLOGIES.built_in:
            self._is_due = False
            self._use(name)

    def _use(self, name: str) -> None:
        self._chosen = name
        self._collective.use_topology(name)


def _within(sizes: Sequence[int]) -> list[int]:
    """Return as many of these sizes as fit into the memory of a trial, at least one."""
    found, total = [min(sizes[0], _MOST_BYTES)], sizes[0]
    for size in sizes[1:]:
        total += size
        if total > _MOST_BYTES:
            break
        found.append(size)
    return found


def _measure(group: Collective, names: Sequence[str], sizes: Sequence[int]) -> list[float]:
    """Return the seconds of one step's sums along each topology, as the slowest worker saw them."""
    tensors = [torch.zeros(max(1, size // 4)) for size in sizes]
    # The first round draws memory, and says how long the others will take.
    first_s = _slowest(group, [_timed(group, name, tensors) for name in names])
    rounds = max(1, min(_MOST_ROUNDS, int(_TRIALS_S / max(1e-3, sum(first_s))) - 1))
    times_s = [[_timed(group, name, tensors) for name in names] for _ in range(rounds)]
    return _slowest(group, [statistics.median(of_one) for of_one in zip(*times_s, strict=True)])


def _timed(group: Collective, name: str, tensors: Sequence[Tensor]) -> float:
    group.use_topology(name)
    # Together: whoever is late would make a candidate look slow.
    group.all_reduce(torch.zeros(1))
    began_s = time.perf_counter()
    for pending in [group.start_all_reduce(tensor) for tensor in tensors]:
        pending.wait()
    return time.perf_counter() - began_s


def _slowest(group: Collective, times_s: Sequence[float]) -> list[float]:
    slowest = torch.tensor(times_s, dtype=torch.float64)
    group.all_reduce(slowest, "max")
    found: list[float] = slowest.tolist()
    return found


def _fastest(times_s: Sequence[float]) -> int:
    best = 0
    for number, seconds in enumerate(times_s):
        if seconds * _LEAST_GAIN < times_s[best]:
            best = number
    return best
