"""Networks made of named parts, and which part reads which.

A `PartedNetwork` is an ordinary module. In one process it computes its parts one after another; the
strategy `split` puts them on different workers. Both draw dropout alike, because every part has a
separate random stream. `fx_trace` finds the parts of other networks; `split` decides their
placement.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.errors import SpecError
from phalanx.spec.names import did_you_mean

INPUT = "input"
"""Input of a part that takes whole samples, as the data has them."""


@dataclass(frozen=True)
class Columns:
    """A range of columns of a flat sample, such as those of one sensor.

    A worker whose parts read only these loads only these.
    """

    start: int
    stop: int
    shape: tuple[int, ...] | None = None
    """Of one sample's tensor, such as (channels, height, width); None: as it lies."""

    def take(self, samples: Tensor) -> Tensor:
        """Return these columns of some samples."""
        cut = samples[:, self.start : self.stop]
        return cut if self.shape is None else cut.reshape(len(cut), *self.shape)


class PartedNetwork(nn.Module):
    """A network given by its parts; the last one's output is the network's.

    Parts come after those that they read; a dot in a name makes a part a child of a common module:
    `lidar.conv1`. Each returns one tensor with one row per sample. `reads` names the parts or
    inputs that each reads: `inputs` are columns of flat samples, and `input` is always the whole
    sample. Parts in `separate` take what they read as several arguments, the others concatenated
    along axis 1.
    """

    def __init__(
        self,
        parts: Mapping[str, nn.Module],
        *,
        reads: Mapping[str, Sequence[str]],
        inputs: Mapping[str, Columns] | None = None,
        separate: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.inputs = dict(inputs or {})
        self.reads = {name: tuple(reads.get(name, ())) for name in parts}
        """What each part reads; parts come after those that they read."""
        self.separate = frozenset(separate)
        _check(list(parts), self.reads, self.inputs)
        for name, module in parts.items():
            *folders, last = name.split(".")
            home: nn.Module = self
            for folder in folders:
                if folder not in home._modules:
                    home.add_module(folder, nn.Module())
                home = home.get_submodule(folder)
            home.add_module(last, module)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the last part's output."""
        base = torch.default_generator.initial_seed()
        values: dict[str, Tensor] = {INPUT: samples}
        values |= {name: columns.take(samples) for name, columns in self.inputs.items()}
        output = samples
        for index, (name, sources) in enumerate(self.reads.items()):
            with drawing(part_seed(base, index)):
                output = self.run_part(name, [values[source] for source in sources])
            values[name] = output
        return output

    def run_part(self, name: str, read: Sequence[Tensor]) -> Tensor:
        """Run a part on its inputs and return its output."""
        return call_part(self.get_submodule(name), read, separate=name in self.separate)


def call_part(module: nn.Module, read: Sequence[Tensor], *, separate: bool) -> Tensor:
    """Call a part's module on its inputs and return its output."""
    taken = read if separate or len(read) == 1 else (torch.cat(list(read), dim=1),)
    output: Tensor = module(*taken)
    return output


def _check(
    names: Sequence[str], reads: Mapping[str, Sequence[str]], inputs: Mapping[str, Columns]
) -> None:
    if not names:
        raise SpecError("a network of parts needs at least one part")
    known = [INPUT, *inputs]
    for name in names:
        if name in known:
            raise SpecError(f"part '{name}' needs another name: an input has this one")
        if not reads[name]:
            raise SpecError(f"part '{name}' reads nothing; name what it reads in 'reads'")
        for source in reads[name]:
            if source not in known:
                raise SpecError(
                    f"part '{name}' reads '{source}', which is no input and no part before it"
                    f"{did_you_mean(source, known)}"
                )
        known.append(name)
    read = {source for name in names for source in reads[name]}
    unread = [name for name in names[:-1] if name not in read]
    if unread:
        raise SpecError(
            f"part '{unread[0]}' is read by no other part; only the last one, '{names[-1]}', may be"
        )


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
