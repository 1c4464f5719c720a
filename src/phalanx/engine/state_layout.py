"""Map every tensor of a whole network to its place in a checkpoint and to its unit.

In a split run no process holds the whole network, but its checkpoints are those of any other run:
in the order of the whole network's parameters and statistics. The layout keeps that order when the
network is partitioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from phalanx.engine.layout import Range

Names = Sequence[str]


@dataclass(frozen=True)
class StateLayout:
    """Shapes of a whole network's state; holds no tensors with data."""

    parameters: Mapping[str, Range]
    """Trained ones, in the order of the flat buffer."""
    buffers: Mapping[str, Range]
    """Float statistics, likewise."""
    others: Mapping[str, Tensor]
    """Every other persistent buffer and frozen parameter, by key in the state; on no device."""
    name_of: Mapping[int, str] = field(repr=False)
    """By identity of the parameter or buffer, while the network exists."""

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return sum(len(part) for part in self.parameters.values())

    @property
    def buffer_size(self) -> int:
        """Number of entries of the float statistics."""
        return sum(len(part) for part in self.buffers.values())


def state_layout_of(module: nn.Module) -> StateLayout:
    """Return the layout of a network that has not been partitioned or moved yet."""
    parameters: dict[str, Range] = {}
    buffers: dict[str, Range] = {}
    others: dict[str, Tensor] = {}
    name_of: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        name_of[id(parameter)] = name
        if parameter.requires_grad:
            _append(parameters, name, parameter.numel())
        else:
            others[f"frozen/{name}"] = torch.empty_like(parameter.data, device="meta")
    for name, buffer in module.named_buffers():
        path, _, key = name.rpartition(".")
        if key in module.get_submodule(path)._non_persistent_buffers_set:
            continue
        name_of[id(buffer)] = name
        if buffer.dtype == torch.float32:
            _append(buffers, name, buffer.numel())
        else:
            others[f"buffer/{name}"] = torch.empty_like(buffer, device="meta")
    return StateLayout(parameters=parameters, buffers=buffers, others=others, name_of=name_of)


def _append(table: dict[str, Range], name: str, size: int) -> None:
    start = next(reversed(table.values())).stop if table else 0
    table[name] = Range(start, start + size)


def copy_in(flat: Tensor, whole: Tensor, names: Names, table: Mapping[str, Range]) -> None:
    """Copy the entries of a unit, name by name, to their places in the whole."""
    for name, part in _walk(names, table):
        whole[table[name].start : table[name].stop].copy_(flat[part.start : part.stop])


def copy_out(whole: Tensor, flat: Tensor, names: Names, table: Mapping[str, Range]) -> None:
    """Copy a unit's entries out of the whole."""
    for name, part in _walk(names, table):
        flat[part.start : part.stop].copy_(whole[table[name].start : table[name].stop])


def _walk(names: Names, table: Mapping[str, Range]) -> list[tuple[str, Range]]:
    found: list[tuple[str, Range]] = []
    start = 0
    for name in names:
        found.append((name, Range(start, start + len(table[name]))))
        start += len(table[name])
    return found
