"""Sums that add up over shares, and refusals."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from phalanx.engine.inputs import Inputs
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


def _tokens(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(4, 6, 5, generator=draw)
    targets = torch.randint(0, 5, (4, 6), generator=draw)
    targets[0, 2:] = targets[3, 1] = -100
    return outputs, targets


@pytest.mark.parametrize("axis", [1, 2])
def test_labels_per_position_count_where_they_are_not_ignored(axis: int) -> None:
    outputs, targets = _tokens()
    total, correct, weight = Loss(LossSpec()).compute(outputs.movedim(2, axis), targets)
    assert weight == 24 - 4 - 1
    mean = F.cross_entropy(outputs.movedim(2, 1), targets)
    assert total.item() == pytest.approx(weight * mean.item(), rel=1e-6)
    assert int(correct) == int((outputs.argmax(2) == targets).sum())


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        (LossSpec(name="l1"), F.l1_loss),
        (LossSpec(name="huber", delta=0.3), lambda o, t: F.huber_loss(o, t, delta=0.3)),
        (LossSpec(name="bce"), lambda o, t: F.binary_cross_entropy_with_logits(o, t)),
    ],
)
def test_built_in_losses_are_those_of_torch(spec: LossSpec, reference: Any) -> None:
    draw = torch.Generator().manual_seed(2)
    outputs, targets = torch.randn(7, 3, generator=draw), torch.rand(7, 3, generator=draw)
    total, correct, weight = Loss(spec).compute(outputs, targets)
    assert (int(correct), weight) == (0, 7)
    assert total.item() == pytest.approx(7 * reference(outputs, targets).item(), rel=1e-5)


def _mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets)


def _sum_and_count(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
    return F.cross_entropy(outputs, targets, reduction="sum"), 3


def _with_inputs(outputs: object, targets: object, *, inputs: torch.Tensor) -> torch.Tensor:
    return inputs.square().mean(dim=1)


def _nothing(outputs: object, targets: object) -> None:
    return None


@pytest.mark.parametrize(("name", "weight"), [("_mean", 6), ("_sum_and_count", 3)])
def test_own_losses_return_a_mean_or_a_sum_with_its_count(name: str, weight: float) -> None:
    outputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    own = Loss(LossSpec(name=f"{__name__}:{name}")).compute(outputs, targets)
    assert own.weight == weight
    expected = Loss(LossSpec()).compute(outputs, targets).total.item()
    assert own.total.item() == pytest.approx(expected, rel=1e-5)


def test_own_losses_may_read_the_inputs() -> None:
    inputs = Inputs((torch.ones(2, 3),), {})
    own = Loss(LossSpec(name=f"{__name__}:_with_inputs"))
    assert own.compute(torch.zeros(2, 1), torch.zeros(2), inputs).total.item() == 2.0


class _Answer(dict[str, torch.Tensor]):
    loss: torch.Tensor


@pytest.mark.parametrize("form", ["attribute", "key", "tuple"])
def test_the_loss_of_the_model_is_weighted_by_labels_that_count(form: str) -> None:
    outputs, targets = _tokens()
    mean = F.cross_entropy(outputs.movedim(2, 1), targets)
    found: object = {"loss": mean, "logits": outputs}
    if form == "tuple":
        found = (outputs, mean)
    if form == "attribute":
        found = _Answer(logits=outputs)
        found.loss = mean
    total, correct, weight = Loss(LossSpec(name="model")).compute(found, targets)
    assert weight == 19
    assert total.item() == pytest.approx(19 * mean.item())
    assert int(correct) == int((outputs.argmax(2) == targets).sum())


def test_models_that_shift_labels_count_from_the_second_on() -> None:
    outputs, targets = _tokens()
    found = {"loss": torch.tensor(2.0), "logits": outputs}
    total, correct, weight = Loss(LossSpec(name="model", shift=True)).compute(found, targets)
    assert (total.item(), weight) == (30.0, 15)
    assert int(correct) == int((outputs[:, :-1].argmax(2) == targets[:, 1:]).sum())


def test_outputs_in_dicts_and_tuples_are_found() -> None:
    outputs, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
    plain = Loss(LossSpec()).compute(outputs, targets).total
    for found in ({"logits": outputs}, {"hidden": outputs}, (outputs, torch.zeros(3))):
        assert torch.equal(Loss(LossSpec()).compute(found, targets).total, plain)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "words"),
    [
        ("bce", torch.zeros(2, 3), torch.tensor([0, 1]), "one label of 0 or 1 per output"),
        ("bce", torch.zeros(2, 1), torch.tensor([0, 4]), "labels from 0 to 1"),
        ("model", torch.zeros(2, 3), torch.tensor([0, 1]), "a network that returns its loss"),
        ("cross-entropy", {"a": 1}, torch.tensor([0, 1]), "the model returned dict"),
        (f"{__name__}:_nothing", torch.zeros(2, 3), torch.tensor([0, 1]), "returned NoneType"),
    ],
)
def test_what_a_loss_cannot_use_is_said(
    name: str, outputs: object, targets: torch.Tensor, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        Loss(LossSpec.model_validate({"name": name})).compute(outputs, targets)
