"""Flat updates against torch.optim tensor by tensor, slices against the whole, and saved state."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phalanx.engine.layout import Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.errors import EngineError
from phalanx.spec.optimize import (
    AdadeltaSpec,
    AdagradSpec,
    AdamSpec,
    AdamwSpec,
    OptimizerSpec,
    SgdSpec,
)

# The first of torch's optimisers imports its compiler, which sets a variable of the environment;
# done here, it is not taken for a leak of the test that happens to come first.
torch.optim.SGD([torch.zeros(1)], lr=1.0)

SHAPES = [(7, 5), (7,), (3, 2, 3, 3), (2,)]
SIZES = [math.prod(shape) for shape in SHAPES]
SIZE = sum(SIZES)
KERNELS = (Range(0, 35), Range(42, 96))

RULES: list[tuple[OptimizerSpec, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (SgdSpec(), torch.optim.SGD, {}),
    (SgdSpec(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (
        SgdSpec(momentum=0.9, nesterov=True, weight_decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    (AdagradSpec(weight_decay=0.02), torch.optim.Adagrad, {"weight_decay": 0.02}),
    (AdadeltaSpec(rho=0.9), torch.optim.Adadelta, {"rho": 0.9}),
    (AdadeltaSpec(weight_decay=0.01), torch.optim.Adadelta, {"rho": 0.95, "weight_decay": 0.01}),
    (AdamSpec(betas=(0.8, 0.99)), torch.optim.Adam, {"betas": (0.8, 0.99)}),
    (AdamSpec(weight_decay=0.01), torch.optim.Adam, {"weight_decay": 0.01}),
    (AdamwSpec(), torch.optim.AdamW, {"weight_decay": 0.01}),
]
SPECS = [rule[0] for rule in RULES]


def random(seed: int, size: int = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def rate(step: int) -> float:
    return 0.02 / (1 + step % 3)


@pytest.mark.parametrize(("spec", "rule", "options"), RULES, ids=lambda v: getattr(v, "name", ""))
def test_twenty_steps_equal_torch_per_tensor(
    spec: OptimizerSpec, rule: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    flat = random(0)
    tensors = [
        part.clone().view(shape) for part, shape in zip(flat.split(SIZES), SHAPES, strict=True)
    ]
    optimizer = FlatOptimizer(spec, flat)
    reference = rule(tensors, lr=1.0, foreach=False, **options)
    for step in range(20):
        gradient = random(step + 1)
        for tensor, part in zip(tensors, gradient.clone().split(SIZES), strict=True):
            tensor.grad = part.view_as(tensor)
        reference.param_groups[0]["lr"] = rate(step)
        reference.step()
        optimizer.step(gradient, rate(step))
    expected = torch.cat([tensor.flatten() for tensor in tensors])
    assert (flat - expected).abs().max().item() < 1e-6
    assert not torch.equal(flat, random(0))


@settings(deadline=None, max_examples=30)
@given(spec=st.sampled_from(SPECS), cuts=st.sets(st.integers(1, SIZE // 16), max_size=5))
def test_slices_at_vector_bounds_equal_the_whole_bit_by_bit(
    spec: OptimizerSpec, cuts: set[int]
) -> None:
    whole, parted = stepped_whole_and_in_slices(spec, {cut * 16 for cut in cuts})
    assert torch.equal(whole, parted)


@settings(deadline=None, max_examples=30)
@given(spec=st.sampled_from(SPECS), cuts=st.sets(st.integers(1, SIZE - 1), max_size=5))
def test_slices_anywhere_equal_the_whole_but_for_rounding(
    spec: OptimizerSpec, cuts: set[int]
) -> None:
    whole, parted = stepped_whole_and_in_slices(spec, cuts)
    assert torch.allclose(whole, parted, rtol=0, atol=1e-6)


def stepped_whole_and_in_slices(spec: OptimizerSpec, cuts: set[int]) -> tuple[Tensor, Tensor]:
    spec = spec.model_copy(update={"l2": 0.01, "clip_norm": 3.0})
    whole, parted = random(0), random(0)
    one = FlatOptimizer(spec, whole, kernels=KERNELS)
    edges = [0, *sorted(cuts), SIZE]
    parts = [Range(a, b) for a, b in pairwise(edges)]
    many = [FlatOptimizer(spec, parted[p.start : p.stop], kernels=cut(p)) for p in parts]
    for step in range(4):
        gradient = random(step + 1)
        apart = [gradient[p.start : p.stop].clone() for p in parts]
        norm = math.sqrt(sum(o.squared_norm(g) for o, g in zip(many, apart, strict=True)))
        assert norm == pytest.approx(math.sqrt(one.squared_norm(gradient)), rel=1e-5)
        # The same norm on both sides, so that nothing but the slicing differs.
        one.step(gradient, rate(step), gradient_norm=norm)
        for optimizer, own in zip(many, apart, strict=True):
            optimizer.step(own, rate(step), gradient_norm=norm)
    assert one.regularisation() == pytest.approx(sum(o.regularisation() for o in many), rel=1e-5)
    return whole, parted


def cut(part: Range) -> list[Range]:
    found = [(max(k.start, part.start), min(k.stop, part.stop)) for k in KERNELS]
    return [Range(a - part.start, b - part.start) for a, b in found if a < b]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_saved_state_continues_bit_by_bit(spec: OptimizerSpec) -> None:
    flat = random(0)
    optimizer = FlatOptimizer(spec, flat)
    keys = set(optimizer.state())
    for step in range(3):
        optimizer.step(random(step + 1), 0.01)
    assert set(optimizer.state()) == keys
    saved = {key: value.clone() for key, value in optimizer.state().items()}
    resumed_flat = flat.clone()
    resumed = FlatOptimizer(spec, resumed_flat)
    resumed.load_state(saved)
    for step in range(3, 6):
        optimizer.step(random(step + 1), 0.01)
        resumed.step(random(step + 1), 0.01)
    assert torch.equal(flat, resumed_flat)
    for key, value in optimizer.state().items():
        assert torch.equal(value, resumed.state()[key])


def test_state_of_another_rule_is_refused() -> None:
    adam = FlatOptimizer(AdamSpec(), random(0))
    with pytest.raises(EngineError, match="'adam' here needs"):
        adam.load_state(FlatOptimizer(SgdSpec(momentum=0.9), random(0)).state())


def test_l2_is_the_gradient_of_its_penalty_on_kernels_only() -> None:
    flat = random(0)
    weights = flat.clone().requires_grad_()
    penalty = 0.03 * sum((weights[k.start : k.stop] ** 2).sum() for k in KERNELS)
    optimizer = FlatOptimizer(SgdSpec(l2=0.03), flat, kernels=KERNELS)
    assert optimizer.regularisation() == pytest.approx(penalty.item(), rel=1e-6)
    (expected,) = torch.autograd.grad(penalty, weights)  # type: ignore[arg-type]
    gradient = torch.zeros(SIZE)
    optimizer.step(gradient, 1.0)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(flat, random(0) - expected)


def test_clipping_equals_torch() -> None:
    flat, gradient = torch.zeros(SIZE), random(1)
    reference = torch.zeros(SIZE)
    reference.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([reference], 0.5)
    FlatOptimizer(SgdSpec(clip_norm=0.5), flat).step(gradient, 1.0)
    torch.testing.assert_close(flat, -reference.grad)
    short = torch.full((SIZE,), 1e-3)
    FlatOptimizer(SgdSpec(clip_norm=0.5), flat).step(short, 1.0)
    assert torch.equal(short, torch.full((SIZE,), 1e-3))


def test_the_gradient_is_read_in_place() -> None:
    flat = random(0)
    optimizer = FlatOptimizer(SgdSpec(momentum=0.9), flat)
    gradient = random(1)
    optimizer.step(gradient, 0.1)
    assert torch.equal(gradient, random(1))
    assert optimizer.state()["momentum_buffer"].data_ptr() != gradient.data_ptr()
