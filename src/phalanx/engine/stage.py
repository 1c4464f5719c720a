"""The parts of a network in this process: their weights, statistics and update rule.

Parts that share weights form one unit; every other part is a unit by itself. A unit has flat
buffers like a replica's, so it is saved, exchanged and updated like one.
`strategy.split.pipeline_runner` runs the parts and exchanges activations; nothing here depends on
other workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.engine.buffers import FlatBuffers
from phalanx.engine.flat import FlatModule
from phalanx.engine.loss import Loss
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.precision import Precision, autocast
from phalanx.engine.state_layout import Names, StateLayout, copy_in, copy_out
from phalanx.errors import EngineError
from phalanx.model.parts import PartedNetwork, call_part, drawing
from phalanx.spec.loss import LossSpec
from phalanx.spec.optimize import OptimizerSpec

_NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class Contents:
    """Contents of a unit, by their names in the whole network."""

    parts: tuple[int, ...]
    parameters: Names
    """Trained ones, in the order of the unit's flat buffer."""
    buffers: Names
    """Float statistics, likewise."""
    others: Names
    """Keys in the state of whole numbers and frozen weights."""


def contents_of(
    network: PartedNetwork, tied: Sequence[Sequence[int]], layout: StateLayout
) -> list[Contents]:
    """Return all units of a network that has not been partitioned yet."""
    names = list(network.reads)
    groups = {number: tuple(group) for group in tied for number in group}
    units = dict.fromkeys(groups.get(number, (number,)) for number in range(len(names)))
    return [
        _contents(parts, [network.get_submodule(names[number]) for number in parts], layout)
        for parts in units
    ]


def _contents(
    parts: tuple[int, ...], modules: Sequence[nn.Module], layout: StateLayout
) -> Contents:
    held = nn.ModuleList(modules)
    name_of = layout.name_of
    trained = [p for p in held.parameters() if p.requires_grad]
    frozen = [p for p in held.parameters() if not p.requires_grad]
    names = [name_of[id(b)] for b in held.buffers() if id(b) in name_of]
    return Contents(
        parts=parts,
        parameters=[name_of[id(p)] for p in trained],
        buffers=[name for name in names if name in layout.buffers],
        others=[f"buffer/{name}" for name in names if name not in layout.buffers]
        + [f"frozen/{name_of[id(p)]}" for p in frozen],
    )


class StageUnit:
    """Parts whose weights belong together.

    Args:
        contents: What it consists of.
        modules: Its parts.
        layout: Of the whole network, for names in the state.
        optimizer: The update rule.
    """

    def __init__(
        self,
        contents: Contents,
        modules: Sequence[nn.Module],
        *,
        layout: StateLayout,
        optimizer: OptimizerSpec,
    ) -> None:
        self.contents = contents
        held = nn.ModuleList(modules)
        name_of = layout.name_of
        trained = [p for p in held.parameters() if p.requires_grad]
        live = {f"buffer/{name_of[id(b)]}": b for b in held.buffers() if id(b) in name_of}
        live |= {f"frozen/{name_of[id(p)]}": p.data for p in held.parameters() if id(p) in name_of}
        self.others: dict[str, Tensor] = {key: live[key] for key in contents.others}
        """Whole numbers and frozen weights, by their key in the state; live."""
        _forbid_changes_in_place(held)
        self._flat = FlatModule(held) if trained else None
        self._buffers = FlatBuffers(held)
        self.optimizer = (
            FlatOptimizer(optimizer, self.parameters, kernels=self._flat.layout.kernels())
            if self._flat is not None
            else None
        )
        held.train()

    @property
    def parameters(self) -> Tensor:
        """All trained parameters; writing to it changes the parts."""
        return self._flat.parameters if self._flat is not None else _NOTHING

    @property
    def gradients(self) -> Tensor:
        """Gradients accumulated since they were last set to zero."""
        return self._flat.gradients if self._flat is not None else _NOTHING

    @property
    def buffers(self) -> Tensor:
        """All float statistics; writing to it changes the parts."""
        return self._buffers.flat

    def flats(self) -> dict[str, Tensor]:
        """Return the unit's live share of the state: flat tensors, and the rule's counters."""
        found = {"parameters": self.parameters, "buffers": self.buffers}
        state = self.optimizer.state() if self.optimizer is not None else {}
        return found | {f"optimizer/{key}": value for key, value in state.items()}

    def take_from(self, whole: Mapping[str, Tensor], layout: StateLayout) -> None:
        """Restore the unit from its share of a whole state."""
        for key, flat in self.flats().items():
            if flat.ndim == 0:
                flat.copy_(whole[key])
            elif key == "buffers":
                copy_out(whole[key], flat, self.contents.buffers, layout.buffers)
            else:
                copy_out(whole[key], flat, self.contents.parameters, layout.parameters)
        for key, value in self.others.items():
            value.copy_(whole[key])


def put_unit(
    given: Mapping[str, Tensor], whole: Mapping[str, Tensor], layout: StateLayout, unit: Contents
) -> None:
    """Write a unit's share, from here or from another worker, to its places in a whole state."""
    for key, value in given.items():
        if key in layout.others or value.ndim == 0:
            whole[key].copy_(value)
        elif key == "buffers":
            copy_in(value, whole[key], unit.buffers, layout.buffers)
        else:
            copy_in(value, whole[key], unit.parameters, layout.parameters)


class Stage:
    """The parts of a network that one worker computes.

    Constructing one makes the CPU treat denormal numbers as zero in this thread, as a replica does.

    Args:
        network: The whole network, laid out already; its own parts move into flat buffers.
        own: The parts to hold, by number.
        contents: All units of the network.
        layout: Of the whole network.
        loss: What is minimised.
        optimizer: The update rule.
        precision: Format of the forward and backward pass.
    """

    def __init__(
        self,
        network: PartedNetwork,
        own: Sequence[int],
        *,
        contents: Sequence[Contents],
        layout: StateLayout,
        loss: LossSpec,
        optimizer: OptimizerSpec,
        precision: Precision = "fp32",
    ) -> None:
        torch.set_flush_denormal(True)
        names = list(network.reads)
        self._modules = {number: network.get_submodule(names[number]) for number in own}
        self._separate = {number for number in own if names[number] in network.separate}
        self._names = names
        self.loss = Loss(loss)
        self._precision: Precision = precision
        self.units = [
            StageUnit(
                unit,
                [self._modules[number] for number in unit.parts],
                layout=layout,
                optimizer=optimizer,
            )
            for unit in contents
            if unit.parts[0] in self._modules
        ]
        self._is_training = True

    def set_training(self, training: bool) -> None:
        """Switch dropout and batch statistics on or off."""
        if training != self._is_training:
            self._is_training = training
            for module in self._modules.values():
                module.train(training)

    def zero_gradients(self) -> None:
        """Begin a new step."""
        for unit in self.units:
            unit.gradients.zero_()

    def run(self, part: int, read: Sequence[Tensor], *, seed: int) -> Tensor:
        """Run a part on its inputs and return its output.

        Raises:
            EngineError: The part failed.
        """
        with autocast(self._precision), drawing(seed):
            try:
                return call_part(self._modules[part], read, separate=part in self._separate)
            except RuntimeError as error:
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in read)
                raise EngineError(
                    f"part '{self._names[part]}' failed on inputs of shape {shapes}: {error}"
                ) from error

    def measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss summed over samples, and the number of correct ones."""
        with autocast(self._precision):
            total, correct, weight = self.loss.compute(outputs, targets)
        if weight != len(targets):
            raise EngineError(
                f"a split network divides its loss by samples, and this one counted {weight:g} for "
                f"{len(targets)}; choose a loss per sample or another strategy"
            )
        return total, correct


def _forbid_changes_in_place(module: nn.Module) -> None:
    """Forbid layers to write in place: a part's input and output are also read elsewhere."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # ReLU and its like have a flag
