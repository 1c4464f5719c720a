"""Own metrics: the same value however the samples are spread over workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.errors import EngineError, SpecError
from phalanx.spec.metrics import MetricSpec
from phalanx.worker.output_metrics import OutputMetrics
from support.ranks import run_ranks

DRAW = torch.Generator().manual_seed(5)
OUTPUTS = torch.randn(11, 3, generator=DRAW)
TARGETS = torch.randint(0, 3, (11,), generator=DRAW)


def error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) != targets).float().mean()


def errors(outputs: Tensor, targets: Tensor, *, factor: float = 1.0) -> tuple[Tensor, int]:
    return factor * (outputs.argmax(1) != targets).sum(), len(targets)


def spread(outputs: Tensor, targets: Tensor) -> float:
    return float(outputs.std())


class Largest:
    """No sum of states: needs all samples."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.value = outputs.max()

    def compute(self) -> Tensor:
        return self.value


def dim_zero_sum(x: Tensor) -> Tensor:
    return x.sum(dim=0)


class Summed:
    """As torchmetrics declares states that add up."""

    def __init__(self, start: int = 0) -> None:
        self._reductions = {"wrong": dim_zero_sum, "total": dim_zero_sum}
        self.wrong, self.total = torch.tensor(start), torch.tensor(0)
        self.updates = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        assert len(targets) < len(TARGETS), "given all samples instead of its own"
        self.wrong += (outputs.argmax(1) != targets).sum()
        self.total += len(targets)

    def compute(self) -> Tensor:
        return self.wrong / self.total


class Nothing:
    pass


def several(outputs: Tensor, targets: Tensor) -> list[int]:
    return [1, 2]


def raises(outputs: Tensor, targets: Tensor) -> None:
    raise KeyError("threshold")


def measured(*specs: Any, shares: tuple[int, ...]) -> dict[str, float]:
    metrics = [MetricSpec.model_validate(one) for one in specs]

    def body(collective: Collective) -> dict[str, float]:
        first = sum(shares[: collective.rank])
        own = slice(first, first + shares[collective.rank])
        judges = OutputMetrics(metrics)
        for outputs, targets in zip(OUTPUTS[own].split(4), TARGETS[own].split(4), strict=True):
            if len(targets):
                judges.update(outputs, targets)
        return judges.compute(collective, TARGETS, first_row=first, loss=0.5)

    found = run_ranks(len(shares), body)
    assert all(one == found[0] for one in found)
    return found[0]


def named(name: str, **more: object) -> dict[str, object]:
    return {"name": f"{__name__}:{name}"} | more


@pytest.mark.parametrize("shares", [(11,), (6, 5), (1, 10, 0)])
def test_values_are_those_over_all_samples(shares: tuple[int, ...]) -> None:
    found = measured(
        {"name": "perplexity"},
        named("error_rate"),
        named("errors", args={"factor": 2.0}),
        named("spread", gather=True),
        named("Largest"),
        named("Summed"),
        shares=shares,
    )
    wrong = float((OUTPUTS.argmax(1) != TARGETS).double().mean())
    assert found == pytest.approx(
        {
            "perplexity": 1.6487212707,
            "error_rate": wrong,
            "errors": 2 * wrong,
            "spread": float(OUTPUTS.std()),
            "Largest": float(OUTPUTS.max()),
            "Summed": wrong,
        },
        rel=1e-6,
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (named("Nothing"), "a class without update and compute"),
        (named("several"), "returned list; it must return one number"),
        (named("raises"), "raised KeyError: 'threshold'"),
        (named("OUTPUTS"), "is Tensor, not a function or class"),
        (named("absent"), "has no 'absent'"),
    ],
)
def test_what_is_no_metric_is_said(spec: dict[str, object], words: str) -> None:
    with pytest.raises((EngineError, SpecError), match=words):
        measured(spec, shares=(11,))
