"""Sums that add up over shares, and refusals."""

import pytest
import torch
import torch.nn.functional as F

from phalanx.engine.loss import Loss
from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_a_sum_over_samples(smoothing: float) -> None:
    outputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    loss = Loss(LossSpec(label_smoothing=smoothing))
    whole, correct, _ = loss.compute(outputs, targets)
    mean = F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    assert whole.item() == pytest.approx(6 * mean.item(), rel=1e-6)
    parts = [loss.compute(outputs[i:j], targets[i:j]) for i, j in ((0, 1), (1, 6))]
    assert sum(p[0].item() for p in parts) == pytest.approx(whole.item(), rel=1e-6)
    assert sum(int(p[1]) for p in parts) == int(correct)


def test_correct_counts_the_largest_output() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    _, correct, _ = Loss(LossSpec()).compute(outputs, torch.tensor([0, 1, 1]))
    assert int(correct) == 2


def test_mean_squared_error_by_hand() -> None:
    loss = Loss(LossSpec(name="mse"))
    outputs = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    targets = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    value, correct, _ = loss.compute(outputs, targets)
    assert (value.item(), int(correct)) == ((1 + 4) / 2 + (9 + 1) / 2, 0)
    one, _, _ = loss.compute(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0]))
    assert one.item() == 5.0


def test_low_precision_outputs_are_summed_in_float32() -> None:
    value, _, _ = Loss(LossSpec()).compute(
        torch.zeros(300, 2, dtype=torch.bfloat16), torch.zeros(300, dtype=torch.int64)
    )
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(300 * 0.6931472, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "words"),
    [
        ("cross-entropy", torch.zeros(2, 3), torch.tensor([0, 3]), "do not fit the model's 3 outp"),
        ("cross-entropy", torch.zeros(2, 3), torch.tensor([0, 1, 2]), "do not fit"),
        ("cross-entropy", torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "whole numbers of shape"),
        ("cross-entropy", torch.zeros(2), torch.tensor([0, 1]), r"outputs of shape \(samples, cl"),
        ("mse", torch.zeros(2, 3), torch.tensor([0, 1]), "choose 'cross-entropy'"),
    ],
)
def test_what_does_not_fit_is_said(
    name: str, outputs: torch.Tensor, targets: torch.Tensor, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        Loss(LossSpec.model_validate({"name": name})).compute(outputs, targets)
