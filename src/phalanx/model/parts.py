"""Networks that say what they are made of: named parts, and which part reads which.

A `PartedNetwork` is an ordinary module. Run in one process it computes its parts one after another;
the strategy `split` puts them on different workers. Both draw dropout alike, because every part
draws from a stream of its own. `capture` finds the parts of other networks. Strategies and the
worker call this module; what is put where is decided in `protocol.splitting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.errors import SpecError
from phalanx.model.draw import drawing, part_seed
from phalanx.spec.names import did_you_mean

INPUT = "input"
"""What a part reads that takes whole samples, as the data has them."""


@dataclass(frozen=True)
class Columns:
    """Some of the numbers of a flat sample, such as those of one sensor.

    A worker whose parts read only these loads only these.
    """

    start: int
    stop: int
    shape: tuple[int, ...] | None = None
    """Of one sample's tensor, such as (channels, height, width); None: as it lies."""

    def take(self, samples: Tensor, *, offset: int = 0) -> Tensor:
        """These columns of samples whose first column is number `offset`."""
        cut = samples[:, self.start - offset : self.stop - offset]
        return cut if self.shape is None else cut.reshape(len(cut), *self.shape)


class PartedNetwork(nn.Module):
    """A network given by its parts; the last one's output is the network's.

    Args:
        parts: Modules by name, each after those that it reads. Each takes one tensor for each thing
            that it reads, in that order, and returns one tensor with one row per sample.
        reads: For each part, the parts or inputs that it reads.
        inputs: Named columns of flat samples; `input` is always there and means the whole sample.
    """

    def __init__(
        self,
        parts: Mapping[str, nn.Module],
        *,
        reads: Mapping[str, Sequence[str]],
        inputs: Mapping[str, Columns] | None = None,
    ) -> None:
        super().__init__()
        self.inputs = dict(inputs or {})
        self.reads = {name: tuple(reads.get(name, ())) for name in parts}
        self._own = dict.fromkeys(parts)
        _check(list(parts), self.reads, self.inputs)
        for name, module in parts.items():
            self.add_module(name, module)

    @property
    def part_names(self) -> tuple[str, ...]:
        """All parts, each after those that it reads."""
        return tuple(self._own)

    def named_parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Name and module of each part."""
        for name in self._own:
            module = self._modules[name]
            assert module is not None
            yield name, module

    def forward(self, samples: Tensor) -> Tensor:
        """The last part's output."""
        base = torch.default_generator.initial_seed()
        values: dict[str, Tensor] = {INPUT: samples}
        values |= {name: columns.take(samples) for name, columns in self.inputs.items()}
        output = samples
        for index, (name, module) in enumerate(self.named_parts()):
            read = [values[source] for source in self.reads[name]]
            with drawing(part_seed(base, index)):
                output = module(*read)
            values[name] = output
        return output


def _check(
    names: Sequence[str], reads: Mapping[str, Sequence[str]], inputs: Mapping[str, Columns]
) -> None:
    if not names:
        raise SpecError("a network of parts needs at least one part")
    known = [INPUT, *inputs]
    for name in names:
        if name in known or "." in name:
            raise SpecError(f"part '{name}' needs another name: no dot, and used only once")
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
