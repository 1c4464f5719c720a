"""Define the built-in losses: each returns a sum, and the number of things it is a sum over.

Those are samples, or for labels per position the positions that count.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec


def cross_entropy(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Sum the cross-entropy over samples, or over positions with a label each."""
    axis = class_axis(outputs, targets)
    if axis is None:
        raise EngineError(
            "cross-entropy needs outputs of shape (samples, classes) and whole numbers of "
            "shape (samples,), or one more axis in both for labels per position, not "
            f"{tuple(outputs.shape)} and {targets.dtype} {tuple(targets.shape)}"
        )
    try:
        total = F.cross_entropy(
            outputs if axis == 1 else outputs.movedim(axis, 1),
            targets,
            reduction="sum",
            ignore_index=spec.ignore,
            label_smoothing=spec.label_smoothing,
        )
    except (IndexError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"targets do not fit the model's {outputs.shape[axis]} outputs: {error}"
        ) from error
    return total, len(targets) if targets.ndim == 1 else int((targets != spec.ignore).sum())


def class_axis(outputs: Tensor, targets: Tensor) -> int | None:
    """Return the axis of outputs that numbers the classes; None: they do not fit the targets.

    With a label per position, networks of text have the classes last, those of images second.
    """
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return None
    if targets.ndim == 1:
        return 1
    fits = {
        outputs.ndim - 1: outputs.shape[:-1] == targets.shape,
        1: (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape),
    }
    preferred = (1, outputs.ndim - 1) if outputs.ndim == 4 else (outputs.ndim - 1, 1)
    return next((axis for axis in preferred if fits[axis]), None)


def squared_error(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Sum the squared error over samples; that of a sample is the mean over its outputs."""
    wanted = _values(outputs, targets, spec)
    return F.mse_loss(outputs, wanted, reduction="sum") / _width(outputs), len(targets)


def absolute_error(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Sum the absolute error over samples; that of a sample is the mean over its outputs."""
    wanted = _values(outputs, targets, spec)
    return F.l1_loss(outputs, wanted, reduction="sum") / _width(outputs), len(targets)


def huber(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Sum the Huber loss over samples: squared up to `delta`, linear beyond."""
    wanted = _values(outputs, targets, spec)
    total = F.huber_loss(outputs, wanted, reduction="sum", delta=spec.delta)
    return total / _width(outputs), len(targets)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Sum the binary cross-entropy of logits over samples: the mean over a sample's labels."""
    if outputs.numel() != targets.numel():
        raise EngineError(
            f"bce needs one label of 0 or 1 per output, not {tuple(targets.shape)} for outputs of "
            f"shape {tuple(outputs.shape)}"
        )
    wanted = targets.float().view_as(outputs)
    if wanted.numel() and not bool(((wanted >= 0) & (wanted <= 1)).all()):
        raise EngineError("bce needs labels from 0 to 1; choose 'cross-entropy' for classes")
    total = F.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum")
    return total / _width(outputs), len(targets)


def loss_of_model(outputs: object, targets: Tensor, *, spec: LossSpec) -> tuple[Tensor, int]:
    """Turn the mean that the network itself computed into a sum.

    With labels per position, the mean is taken to be over those that count.
    """
    mean = find_loss(outputs)
    if mean is None:
        raise EngineError(
            f"loss 'model' needs a network that returns its loss, as .loss, under 'loss' or as a "
            f"number beside its outputs; it returned {type(outputs).__name__}"
        )
    labels = targets[:, 1:] if spec.shift and targets.ndim > 1 else targets
    counts = labels.ndim > 1 and not labels.is_floating_point()
    count = int((labels != spec.ignore).sum()) if counts else len(targets)
    # Without a label that counts the mean is 0 / 0, and must not spoil the sum.
    return (mean.float() * count if count else torch.zeros(()) * mean.detach().nan_to_num()), count


def find_loss(outputs: object) -> Tensor | None:
    """Return the loss in what a network returned: `.loss`, `["loss"]`, or a number in a tuple."""
    found = getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("loss")
    if found is None and isinstance(outputs, tuple | list):
        numbers = [one for one in outputs if isinstance(one, Tensor) and one.ndim == 0]
        found = numbers[0] if len(numbers) == 1 else None
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def find_outputs(found: object) -> Tensor | None:
    """Return the tensor of predictions in what a network returned.

    That is the tensor itself, `logits`, or the first one that is no single number.
    """
    if isinstance(found, Tensor):
        return found
    logits = getattr(found, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(found, Mapping):
        if isinstance(found.get("logits"), Tensor):
            return found["logits"]  # type: ignore[no-any-return]
        parts = list(found.values())
    else:
        parts = list(found) if isinstance(found, tuple | list) else []
    return next((one for one in parts if isinstance(one, Tensor) and one.ndim > 0), None)


def required_outputs(found: object) -> Tensor:
    """Return the tensor of predictions in float32; raises `EngineError` if there is none."""
    outputs = find_outputs(found)
    if outputs is None:
        raise EngineError(
            f"metrics need a tensor of predictions, and the model returned {type(found).__name__}"
        )
    return outputs.detach().float()


def _values(outputs: Tensor, targets: Tensor, spec: LossSpec) -> Tensor:
    if outputs.numel() != targets.numel() or not targets.is_floating_point():
        raise EngineError(
            f"{spec.name} needs one number per output, not {targets.dtype} {tuple(targets.shape)} "
            f"for outputs of shape {tuple(outputs.shape)}; choose 'cross-entropy' for class labels"
        )
    return targets.view_as(outputs)


def _width(outputs: Tensor) -> int:
    return max(outputs[0].numel(), 1) if len(outputs) else 1
