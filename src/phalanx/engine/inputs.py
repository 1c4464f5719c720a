"""Bring batches to a network: tensors on the same memory, one input or several, and the call.

One input is passed as it is, unnamed inputs in their order, named ones by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phalanx.data.base import Array
from phalanx.data.fields import unpack
from phalanx.data.stream import Batch
from phalanx.errors import EngineError

# What `data.normalize` makes: quantities, or whole numbers such as token ids.
_INPUT_TYPES = (np.float32, np.int64)


@dataclass(frozen=True)
class Inputs:
    """What a network is called with."""

    positional: tuple[Tensor, ...]
    named: Mapping[str, Tensor]

    def pass_to(self, network: Callable[..., object], **more: Tensor) -> object:
        """Call a network with these and more named inputs.

        Raises:
            EngineError: It failed, with the shapes that it got.
        """
        try:
            return network(*self.positional, **self.named, **more)
        except (RuntimeError, IndexError, TypeError) as error:
            raise EngineError(f"the model failed on {self.describe()}: {error}") from error

    def describe(self) -> str:
        """Say shapes and types, for messages."""
        if len(self.positional) == 1 and not self.named:
            inputs = self.positional[0]
            hint = (
                ""
                if inputs.is_floating_point()
                else " (whole numbers, as they are stored; store quantities as float32)"
            )
            return f"inputs of shape {tuple(inputs.shape)}{hint}"
        shapes = [str(tuple(one.shape)) for one in self.positional]
        shapes += [f"'{name}' {tuple(one.shape)}" for name, one in self.named.items()]
        return f"inputs {', '.join(shapes)}"

    @property
    def whole(self) -> Tensor | dict[str, Tensor] | tuple[Tensor, ...]:
        """The inputs as the data gave them, for losses that need them."""
        if self.named:
            return dict(self.named)
        return self.positional[0] if len(self.positional) == 1 else self.positional


def inputs_of(batch: Batch) -> tuple[Inputs, Tensor]:
    """Return inputs and targets of a batch as tensors."""
    if not batch.fields:
        inputs, targets = as_tensors(batch)
        return Inputs((inputs,), {}), targets
    return inputs_of_fields(unpack(batch.inputs, batch.fields)), _targets(batch)


def inputs_of_fields(arrays: Mapping[str, Array]) -> Inputs:
    """Return several inputs as tensors, those without names by their order."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    named = {name: one for name, one in tensors.items() if not name.isdigit()}
    return Inputs(tuple(one for name, one in tensors.items() if name not in named), named)


def as_tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return a batch of one input as tensors on the same memory; images become (N, C, H, W)."""
    if batch.fields:
        names = ", ".join(field.name for field in batch.fields)
        raise EngineError(f"only one input per sample can be used here, and there are {names}")
    if batch.inputs.dtype not in _INPUT_TYPES or not batch.inputs.flags.c_contiguous:
        raise EngineError(
            f"inputs must be contiguous float32 or int64, not {batch.inputs.dtype} with strides "
            f"{batch.inputs.strides}"
        )
    if len(batch.inputs) != len(batch.targets):
        raise EngineError(f"{len(batch.inputs)} inputs came with {len(batch.targets)} targets")
    inputs = _tensor(batch.inputs)
    return inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs, _targets(batch)


def _targets(batch: Batch) -> Tensor:
    targets = _tensor(batch.targets)
    return targets.float() if targets.is_floating_point() else targets.long()


def _tensor(array: Array) -> Tensor:
    # torch has no read-only tensors; a copy keeps a model that writes to its input from harm.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
