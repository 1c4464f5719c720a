"""Compute loss and accuracy from outputs and targets, for training and evaluation alike.

Everything is a sum with the weight that it is a sum over (samples, or positions that count), so
that workers with unequal shares add up exactly; means are taken once, where the weight of all is
known. Built-in losses are in `loss_functions`; those of other packages return one loss per sample,
the mean over the batch, or a sum and what it counts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phalanx.data.stream import Batch
from phalanx.engine.inputs import Inputs, inputs_of
from phalanx.engine.loss_functions import class_axis, find_outputs
from phalanx.engine.spans import span
from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec
from phalanx.spec.registry import load

_LABEL_NAMES = ("labels", "targets", "target", "y")


class LossSums(NamedTuple):
    """Loss and correct predictions of a batch, as sums."""

    total: Tensor
    """Differentiable; float32."""
    correct: Tensor
    """In units of `weight`; 0 where nothing can be correct."""
    weight: float
    """What both are sums over."""


class ForwardPass(NamedTuple):
    """Result of a forward pass."""

    sums: LossSums
    outputs: object
    """What the network returned."""
    targets: Tensor


class Loss:
    """Compute the loss that the spec names."""

    def __init__(self, spec: LossSpec) -> None:
        self._name = spec.name
        self._ignore = spec.ignore
        self._is_built_in = spec.is_built_in
        self._kind = spec.kind
        self._function = cast("Callable[..., object]", load(spec.kind.function))
        self._arguments = dict(spec.arguments)
        self._takes_inputs = not spec.is_built_in and "inputs" in _parameters(self._function)
        self._labels_as: str | None = None

    def counts(self, batch: Batch) -> bool:
        """Return whether the weight of a batch may differ from its samples.

        The answer is the same on all workers, also on one whose share is empty.
        """
        if not self._is_built_in or self._kind.in_model:
            return True
        return self._name == "cross-entropy" and batch.targets.ndim > 1

    def forward(self, network: nn.Module, batch: Batch) -> ForwardPass:
        """Call a network on a batch and compute its loss.

        Raises:
            EngineError: The network failed, or outputs and targets do not fit each other.
        """
        inputs, targets = inputs_of(batch)
        labels = {self._label_name(network): targets} if self._kind.in_model else {}
        outputs = inputs.pass_to(network, **labels)
        with span("loss"):
            return ForwardPass(self.compute(outputs, targets, inputs), outputs, targets)

    def compute(self, outputs: object, targets: Tensor, inputs: Inputs | None = None) -> LossSums:
        """Sum the loss and the correct predictions; outputs of a lower precision are widened.

        A prediction is correct if its largest output is that of its class; without class targets
        none counts as correct.

        Args:
            outputs: What the network returned.
            targets: Of the same batch.
            inputs: Likewise, for functions that take `inputs`.

        Raises:
            EngineError: Outputs and targets do not fit each other.
        """
        found = find_outputs(outputs)
        wide = None if found is None else found.float()
        given = outputs
        if isinstance(outputs, Tensor) or (self._is_built_in and not self._kind.in_model):
            given = wide
        if given is None:
            raise EngineError(
                f"loss '{self._name}' needs a tensor, 'logits' or a tuple of tensors, and the "
                f"model returned {type(outputs).__name__}"
            )
        arguments = dict(self._arguments)
        if self._takes_inputs and inputs is not None:
            arguments["inputs"] = inputs.whole
        total, weight = self._summed(self._function(given, targets, **arguments), len(targets))
        with torch.no_grad():
            return LossSums(total, self._correct(wide, targets, weight), weight)

    def _summed(self, found: object, num_samples: int) -> tuple[Tensor, float]:
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor):
            total, count = found[0], float(found[1])
            if total.ndim or not (math.isfinite(count) and count >= 0):
                raise EngineError(
                    f"loss '{self._name}' returned a sum of shape {tuple(total.shape)} over "
                    f"{count:g}; it must be one number over a count"
                )
            return total, count
        if not isinstance(found, Tensor):
            raise EngineError(
                f"loss '{self._name}' returned {type(found).__name__}; it must return one loss per "
                "sample, their mean, or a sum and what it counts"
            )
        if found.ndim and found.shape != (num_samples,):
            raise EngineError(
                f"loss '{self._name}' returned {tuple(found.shape)} for {num_samples} samples; "
                "it must return one number for each"
            )
        return found.float().sum() if found.ndim else found.float() * num_samples, num_samples

    def _correct(self, outputs: Tensor | None, targets: Tensor, weight: float) -> Tensor:
        none = torch.zeros((), dtype=torch.int64)
        if outputs is None or targets.is_floating_point() or self._name == "bce":
            return none
        labels = targets
        if self._kind.in_model and self._arguments["spec"].shift and targets.ndim > 1:  # type: ignore[attr-defined]
            outputs, labels = outputs[:, :-1], targets[:, 1:]
        axis = class_axis(outputs, labels)
        if axis is None:
            return none
        chosen = outputs.argmax(dim=axis)
        if chosen.shape != labels.shape:
            return none
        right = (chosen == labels).sum()
        if labels.ndim == 1:
            return right
        counted = int((labels != self._ignore).sum())
        # A loss may count samples where labels are per position: a share of what it counts.
        return right if counted == weight else (right * weight / max(1, counted)).round().long()

    def _label_name(self, network: nn.Module) -> str:
        if self._labels_as is None:
            known = _parameters(network.forward)
            names = [name for name in _LABEL_NAMES if name in known]
            if not names and "**" not in known:
                raise EngineError(
                    f"loss 'model' gives the network its labels, but {type(network).__name__}."
                    f"forward takes none of {', '.join(_LABEL_NAMES)}"
                )
            self._labels_as = names[0] if names else _LABEL_NAMES[0]
        return self._labels_as


def _parameters(function: Callable[..., object]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C
        return set()
    return {"**" if one.kind is one.VAR_KEYWORD else one.name for one in parameters}


def error_sums(found: object, targets: npt.NDArray[Any]) -> tuple[float, float]:
    """Return absolute and squared error of predicted values, as `EvaluationSums` has them."""
    if targets.dtype.kind != "f":
        return 0.0, 0.0
    outputs = find_outputs(found)
    if outputs is None or outputs.numel() != targets.size:
        return math.nan, math.nan
    wanted = torch.from_numpy(np.array(targets, dtype=np.float64)).view(len(targets), -1)
    errors = outputs.detach().double().view(wanted.shape) - wanted
    return float(errors.abs().mean(dim=1).sum()), float(errors.square().mean(dim=1).sum())
