"""Optimisers of torch.optim and of users over slices of the flat buffer."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.engine.cuts import find_cuts
from phalanx.engine.flat import FlatModule
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.optimizer_factory import OptimizerFactory, join_states
from phalanx.engine.recipe import OptimizerRecipe
from phalanx.errors import EngineError, SpecError
from phalanx.spec.optimize import SgdSpec

LR = 0.02
STEPS = 5
Make = Callable[[nn.Module], Optimizer]


class Lamb(Optimizer):
    """Adam's direction with a length by tensor: exact only with whole tensors."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = 0
                    state["mean"] = torch.zeros_like(p)
                state["count"] += 1
                # A new tensor every time, as many a user writes it.
                state["mean"] = 0.9 * state["mean"] + 0.1 * p.grad
                ratio = p.norm() / (state["mean"].norm() + 1e-6)
                p.sub_(group["lr"] * ratio / state["count"] * state["mean"])


class ClippingSgd(Optimizer):
    """Clips by the norm over all tensors inside its step: exact only as a whole."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, limit: float) -> None:
        super().__init__(params, {"lr": lr})
        self.limit = limit
        self.num_clipped = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        own = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in own]).norm()
        self.num_clipped += int(norm > self.limit)
        for p in own:
            scale = min(1.0, self.limit / float(norm)) / (1 + self.num_clipped)
            p.sub_(p.grad, alpha=LR * scale)


class Counting(Optimizer):
    """Keeps a counter in its group, as schedule-free rules do."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] / group["k"])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)
    )


def two_groups(cls: type[Optimizer], **others: object) -> Make:
    def make(module: nn.Module) -> Optimizer:
        decayed = [p for p in module.parameters() if p.ndim > 1]
        plain = [p for p in module.parameters() if p.ndim == 1]
        groups = [
            {"params": decayed, "weight_decay": 0.1},
            {"params": plain, "weight_decay": 0.0, "lr": LR / 2},
        ]
        return cls(groups, lr=LR, **others)  # type: ignore[call-arg]

    return make


def plain(cls: type[Optimizer], **others: object) -> Make:
    return lambda module: cls(module.parameters(), lr=LR, **others)  # type: ignore[call-arg]


ENTRY: dict[str, Make] = {
    "SGD": plain(torch.optim.SGD, momentum=0.9, dampening=0.3),
    "Adam": plain(torch.optim.Adam, amsgrad=True),
    "AdamW": two_groups(torch.optim.AdamW),
    "NAdam": plain(torch.optim.NAdam),
    "RAdam": two_groups(torch.optim.RAdam),
    "Adamax": plain(torch.optim.Adamax),
    "Adagrad": plain(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "Adadelta": plain(torch.optim.Adadelta),
    "RMSprop": plain(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": plain(torch.optim.Rprop),
    "ASGD": two_groups(torch.optim.ASGD),
    "Counting": plain(Counting),
}
WHOLE_TENSORS: dict[str, Make] = {
    "Adafactor": plain(torch.optim.Adafactor),
    "Lamb": plain(Lamb),
}
EVERY = ENTRY | WHOLE_TENSORS | {"ClippingSgd": plain(ClippingSgd, limit=0.5)}


class Setup:
    """A network, its flat buffer, and optimisers made like the one that `make` gives."""

    def __init__(self, make: Make) -> None:
        self.module = network()
        flat = FlatModule(self.module)
        self.flat: Tensor = flat.parameters
        self.layout: FlatLayout = flat.layout
        self.live = make(self.module)
        recipe = OptimizerRecipe.of(self.live, self.module.named_parameters())
        self.factory = OptimizerFactory(SgdSpec(), self.layout, recipe=recipe)

    def gradient(self, step: int) -> Tensor:
        return torch.randn(self.layout.size, generator=torch.Generator().manual_seed(step))

    def parts(self) -> list[Range]:
        cut_at = self.factory.cut_at
        if cut_at is None:
            cut_at = (16 * 9, 16 * 33)  # inside the convolution, and inside a matrix
        return [Range(*pair) for pair in pairwise((0, *cut_at, self.layout.size))]

    def slices(self, flat: Tensor) -> list[FlatOptimizer]:
        return [self.factory.build(flat[p.start : p.stop], p) for p in self.parts()]

    def step_slices(self, optimizers: list[FlatOptimizer], step: int) -> None:
        gradient = self.gradient(step)
        for part, optimizer in zip(self.parts(), optimizers, strict=True):
            optimizer.step(gradient[part.start : part.stop], LR)

    def step_live(self, step: int) -> None:
        gradient = self.gradient(step)
        for slot, p in zip(self.layout.slots, self.module.parameters(), strict=True):
            p.grad = slot.view(gradient)
        with torch.no_grad():
            self.live.step()


@pytest.mark.parametrize("name", EVERY)
def test_slices_move_as_the_live_optimiser_does(name: str) -> None:
    setup = Setup(EVERY[name])
    cut = setup.flat.clone()
    optimizers = setup.slices(cut)
    for step in range(STEPS):
        setup.step_slices(optimizers, step)
        setup.step_live(step)
    assert torch.equal(cut, setup.flat)


@pytest.mark.parametrize("name", EVERY)
def test_state_is_saved_before_and_after_steps_and_loaded_by_other_slices(name: str) -> None:
    """From the whole to slices and back, as at two switches of strategy."""
    setup = Setup(EVERY[name])
    flat = setup.flat.clone()
    whole = setup.factory.build(flat)
    cut = flat.clone()
    slices = setup.slices(cut)
    back = torch.empty_like(flat)
    last = setup.factory.build(back)
    assert {key for one in slices for key in one.state()} == set(whole.state())
    for step in range(3):  # 0: nothing has begun
        for part, optimizer in zip(setup.parts(), slices, strict=True):
            optimizer.load_state(whole.part((part.start, part.stop)))
        cut.copy_(flat)
        setup.step_slices(slices, step)
        last.load_state(join_states([one.state() for one in slices]))
        back.copy_(cut)
        whole.step(setup.gradient(step), LR)
        assert torch.equal(cut, flat)
        assert_equal_states(last.state(), whole.state())
    last.step(setup.gradient(9), LR)
    whole.step(setup.gradient(9), LR)
    assert torch.equal(back, flat)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adafactor", "Lamb", "ClippingSgd"])
def test_state_of_the_beginning_takes_an_optimiser_back_to_it(name: str) -> None:
    setup = Setup(EVERY[name])
    begin = setup.flat.clone()
    flat = begin.clone()
    optimizer = setup.factory.build(flat)
    empty = {key: value.clone() for key, value in optimizer.state().items()}
    for _ in range(2):
        flat.copy_(begin)
        optimizer.load_state(empty)
        for step in range(3):
            optimizer.step(setup.gradient(step), LR)
        first = flat.clone()
    setup.flat.copy_(begin)
    for step in range(3):
        setup.step_live(step)
    assert torch.equal(first, setup.flat)


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize("name", EVERY)
def test_probe_finds_where_an_optimiser_may_be_cut(name: str) -> None:
    setup = Setup(EVERY[name])
    recipe = OptimizerRecipe.of(setup.live, setup.module.named_parameters())
    found = find_cuts(recipe, setup.layout)
    expected = "entry" if name in ENTRY else "tensor" if name in WHOLE_TENSORS else "whole"
    assert found.cuts == expected
    assert ("differ by" in found.reason) == (name not in ENTRY)


def test_declared_cuts_are_not_probed() -> None:
    setup = Setup(ENTRY["Adam"])
    recipe = OptimizerRecipe.of(setup.live, setup.module.named_parameters(), cuts="whole")
    assert OptimizerFactory(SgdSpec(), setup.layout, recipe=recipe).cut_at == ()


def test_muon_takes_matrices_of_a_network_whose_other_parameters_stay() -> None:
    module = network()
    flat = FlatModule(module)
    live = torch.optim.Muon([p for p in module.parameters() if p.ndim == 2], lr=LR)
    recipe = OptimizerRecipe.of(live, module.named_parameters())
    factory = OptimizerFactory(SgdSpec(), flat.layout, recipe=recipe)
    assert factory.recipe is not None
    assert factory.recipe.cuts == "tensor"
    before = flat.parameters.clone()
    factory.build(flat.parameters).step(torch.randn(flat.layout.size), LR)
    for slot in flat.layout.slots:
        same = torch.equal(slot.view(before), slot.view(flat.parameters))
        assert same == (len(slot.shape) != 2)


def test_options_that_a_scheduler_changes_reach_every_slice() -> None:
    setup = Setup(ENTRY["AdamW"])
    cut = setup.flat.clone()
    optimizers = setup.slices(cut)
    for step in range(3):
        options = [{"betas": (0.8, 0.99), "lr": LR}, {"betas": (0.7, 0.9), "lr": LR * step}]
        for group, new in zip(setup.live.param_groups, options, strict=True):
            group.update(new)
        for one in optimizers:
            one.rule.set_options(options)  # type: ignore[attr-defined]
        setup.step_slices(optimizers, step)
        setup.step_live(step)
    assert torch.equal(cut, setup.flat)


def test_recipe_survives_pickling() -> None:
    setup = Setup(ENTRY["AdamW"])
    recipe = OptimizerRecipe.of(setup.live, setup.module.named_parameters())
    assert pickle.loads(pickle.dumps(recipe)) == recipe


class Noisy(Optimizer):
    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": LR})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p))


class Listing(Optimizer):
    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": LR})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("history", []).append(0)


class Forgetful(Optimizer):
    def __init__(self, params: Iterable[nn.Parameter], warm: int) -> None:
        super().__init__(params, {"lr": LR})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, "LBFGS computes the loss several times in one step"),
        (torch.optim.SparseAdam, "RuntimeError: SparseAdam does not support dense gradients"),
        (Noisy, "draws random numbers in its step"),
        (Listing, "keeps a list as state 'history', which cannot be saved"),
        (lambda parameters: Forgetful(parameters, 3), "keeps its argument 'warm' neither"),
        (
            lambda parameters: torch.optim.SGD([*parameters, nn.Parameter(torch.ones(2))]),
            "holds a parameter of shape (2,) that the network does not have",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_its_reason(
    make: Callable[[Iterable[nn.Parameter]], Optimizer], message: str
) -> None:
    module = network()
    flat = FlatModule(module)

    def share_out() -> None:
        recipe = OptimizerRecipe.of(make(module.parameters()), module.named_parameters())
        OptimizerFactory(SgdSpec(), flat.layout, recipe=recipe).build(flat.parameters)

    with pytest.raises(SpecError, match=re.escape(message)):
        share_out()


def test_state_of_another_optimiser_is_refused_and_changes_nothing() -> None:
    adam, sgd = Setup(ENTRY["Adam"]), Setup(ENTRY["SGD"])
    one = adam.factory.build(adam.flat)
    one.step(adam.gradient(0), LR)
    before = {key: value.clone() for key, value in one.state().items()}
    with pytest.raises(EngineError, match="has nothing for 'exp_avg'"):
        one.load_state(sgd.factory.build(sgd.flat).state())
    assert_equal_states(one.state(), before)
