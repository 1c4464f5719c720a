"""Compute the job's own metrics of outputs and targets, over all workers.

Functions give a mean, or a sum and its count, of each batch; these add up. A class whose states add
up (as torchmetrics declares it) is updated by each worker with its own samples. Anything else gets
the outputs of all samples, which are then gathered on all workers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.errors import EngineError, SpecError
from phalanx.spec.metrics import PERPLEXITY, MetricSpec
from phalanx.spec.registry import load

_MAX_GATHERED_BYTES = 2**30
_MAX_AXES = 8


class OutputMetrics:
    """Metrics of one evaluation; each worker updates with its samples, in their order."""

    def __init__(self, specs: Sequence[MetricSpec]) -> None:
        self._metrics = {one.label: _make(one) for one in specs}
        self._keeps = any(metric.needs_all for metric in self._metrics.values())
        self._kept: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of this worker."""
        for metric in self._metrics.values():
            metric.update(outputs, targets)
        if self._keeps:
            self._kept.append(outputs)

    def compute(
        self, collective: Collective, targets: Tensor, *, first_row: int, loss: float
    ) -> dict[str, float]:
        """Return the metrics over the samples of all workers, who call it together.

        Args:
            collective: The workers.
            targets: Of all samples of the part.
            first_row: Of this worker's samples in it.
            loss: Mean over the part.
        """
        whole = None
        if self._keeps:
            whole = _gathered(self._kept, collective, num_rows=len(targets), first_row=first_row)
        return {
            label: metric.result(collective, whole, targets, loss)
            for label, metric in self._metrics.items()
        }


class _Metric(ABC):
    needs_all = False

    def update(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 (some need none)
        """Add a batch."""

    @abstractmethod
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        """Return the value over all samples."""


class _Perplexity(_Metric):
    @override
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        try:
            return math.exp(loss)
        except OverflowError:
            return math.inf


class _MeanOf(_Metric):
    """A function whose values are means over batches."""

    def __init__(self, spec: MetricSpec, function: Callable[..., object]) -> None:
        self._spec = spec
        self._function = function
        self._sums = torch.zeros(2, dtype=torch.float64)

    @override
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        found = _call(self._spec, self._function, outputs, targets)
        if isinstance(found, tuple) and len(found) == 2:
            total, count = (_number(self._spec, one) for one in found)
        else:
            total, count = _number(self._spec, found) * len(targets), float(len(targets))
        self._sums += torch.tensor([total, count], dtype=torch.float64)

    @override
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        collective.all_reduce(self._sums)
        total, count = self._sums.tolist()
        return total / count if count else math.nan


class _FunctionOfAll(_Metric):
    """A function that is called once."""

    needs_all = True

    def __init__(self, spec: MetricSpec, function: Callable[..., object]) -> None:
        self._spec = spec
        self._function = function

    @override
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        return _number(self._spec, _call(self._spec, self._function, outputs, targets))


class _ObjectOfAll(_Metric):
    """An object with `update` and `compute`, updated once with all samples."""

    needs_all = True

    def __init__(self, spec: MetricSpec, made: Any) -> None:
        self._spec = spec
        self._made = made

    @override
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        _guarded(self._spec, self._made.update, outputs, targets)
        return _number(self._spec, _guarded(self._spec, self._made.compute))


class _SummedStates(_Metric):
    """An object with `update` and `compute`, whose states of several workers add up."""

    def __init__(self, spec: MetricSpec, made: Any) -> None:
        self._spec = spec
        self._made = made

    @override
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        _guarded(self._spec, self._made.update, outputs, targets)

    @override
    def result(
        self, collective: Collective, outputs: Tensor | None, targets: Tensor, loss: float
    ) -> float:
        for name in sorted(self._made._reductions):
            own = getattr(self._made, name)
            total = own.double()
            collective.all_reduce(total)
            setattr(self._made, name, total.to(own.dtype))
        # torchmetrics warns if nothing was updated here, though other workers have samples.
        self._made._update_count = max(1, getattr(self._made, "_update_count", 1))
        return _number(self._spec, _guarded(self._spec, self._made.compute))


def _make(spec: MetricSpec) -> _Metric:
    if spec.name == PERPLEXITY:
        return _Perplexity()
    found = load(spec.name)
    if isinstance(found, type):
        made = _guarded(spec, cast("Callable[..., object]", found), **spec.args)
        if not (hasattr(made, "update") and hasattr(made, "compute")):
            raise SpecError(f"metric '{spec.name}' is a class without update and compute")
        return _SummedStates(spec, made) if _adds_up(made) else _ObjectOfAll(spec, made)
    if not callable(found):
        raise SpecError(f"metric '{spec.name}' is {type(found).__name__}, not a function or class")
    return _FunctionOfAll(spec, found) if spec.gather else _MeanOf(spec, found)


def _adds_up(made: object) -> bool:
    """Return whether an object declares that all its states are summed over processes."""
    reductions = getattr(made, "_reductions", None)
    return (
        isinstance(reductions, dict)
        and bool(reductions)
        and all(getattr(one, "__name__", "") == "dim_zero_sum" for one in reductions.values())
        and all(isinstance(getattr(made, name, None), Tensor) for name in reductions)
    )


def _call(
    spec: MetricSpec, function: Callable[..., object], outputs: Tensor | None, targets: Tensor
) -> object:
    return _guarded(spec, function, outputs, targets, **spec.args)


def _guarded(spec: MetricSpec, function: Callable[..., object], *args: Any, **named: Any) -> object:
    try:
        return function(*args, **named)
    except Exception as error:  # the user's code may raise anything; the cause stays attached
        raise EngineError(f"metric '{spec.name}' raised {type(error).__name__}: {error}") from error


def _number(spec: MetricSpec, found: object) -> float:
    if isinstance(found, Tensor) and found.numel() == 1:
        return float(found)
    try:
        return float(cast("float", found))
    except (TypeError, ValueError, RuntimeError):
        raise EngineError(
            f"metric '{spec.name}' returned {type(found).__name__}; it must return one number, or "
            "a sum and its count"
        ) from None


def _gathered(
    kept: Sequence[Tensor], collective: Collective, *, num_rows: int, first_row: int
) -> Tensor:
    """Return the outputs of all samples on every worker."""
    shape = torch.zeros(_MAX_AXES, dtype=torch.int64)
    if kept:
        axes = kept[0].shape[1:]
        shape[: len(axes)] = torch.tensor(axes)
    # A worker without samples does not know the shape.
    collective.all_reduce(shape, "max")
    sizes = [size for size in shape.tolist() if size > 0]
    num_bytes = 4 * num_rows * math.prod(sizes)
    if num_bytes > _MAX_GATHERED_BYTES:
        raise EngineError(
            f"metrics that need all outputs would gather {num_bytes >> 20} MiB on every worker, "
            f"{_MAX_GATHERED_BYTES >> 20} at most; return a sum and its count instead"
        )
    whole = torch.zeros((num_rows, *sizes))
    row = first_row
    for outputs in kept:
        whole[row : row + len(outputs)] = outputs
        row += len(outputs)
    collective.all_reduce(whole)
    return whole
