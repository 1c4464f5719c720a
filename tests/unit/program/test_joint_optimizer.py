"""The optimisers of several models over slices of one buffer."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from phalanx.consistency.shards import plan_shards
from phalanx.engine.flat import layout_of
from phalanx.engine.layout import FlatLayout
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.recipe import OptimizerRecipe
from phalanx.paramserver.update import SliceUpdater
from phalanx.program.joint_optimizer import JointFactory, JointRule
from phalanx.spec.torch_optimizer import TorchOptimizerSpec
from phalanx.wire.push_options import PushOptions

SPEC = TorchOptimizerSpec(name="torch.optim:SGD", lr=1.0)


class Pair:
    """Two models, whose optimisers differ in kind and rate, and what servers make of them."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.models = [nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))]
        self.optimizers = [
            torch.optim.SGD(self.models[0].parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(self.models[1].parameters(), lr=0.02),
        ]
        layouts: list[FlatLayout] = []
        factories = []
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            layout = layout_of(dict(model.named_parameters()), channels_last=False)
            recipe = OptimizerRecipe.of(optimizer, model.named_parameters())
            layouts.append(layout)
            factories.append(OptimizerFactory(SPEC, layout, recipe=recipe))
        self.factory = JointFactory(SPEC, layouts, factories)
        self.starts = [0, layouts[0].size, layouts[0].size + layouts[1].size]

    def flat(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for m in self.models for p in m.parameters()])

    def options(self) -> PushOptions:
        return PushOptions.of([g for one in self.optimizers for g in one.param_groups])

    def step_alone(self, index: int, seed: int) -> torch.Tensor:
        """Step one model; returns its gradient, within that of all."""
        gradient = torch.zeros(self.starts[-1])
        drawn = torch.Generator().manual_seed(seed)
        place = self.starts[index]
        for parameter in self.models[index].parameters():
            parameter.grad = torch.randn(parameter.shape, generator=drawn)
            gradient[place : place + parameter.numel()] = parameter.grad.flatten()
            place += parameter.numel()
        self.optimizers[index].step()
        return gradient


def updater_of(pair: Pair, parameters: torch.Tensor) -> SliceUpdater:
    layout = plan_shards(
        len(parameters),
        num_servers=1,
        segment_bytes=32,
        cut_at=pair.factory.cut_at,
        borders=pair.factory.borders,
    )
    assert len(layout.segments) > 2
    return SliceUpdater(pair.factory, parameters, layout.segments)


def test_slices_step_as_the_models_by_themselves() -> None:
    pair = Pair()
    parameters = pair.flat()
    updater = updater_of(pair, parameters)
    # The second steps less often, and a schedule changes the rate of the first.
    for number, index in enumerate((0, 1, 0, 0, 1, 0)):
        options = pair.options()
        gradient = pair.step_alone(index, number)
        for place, part in enumerate(updater.parts):
            if pair.starts[index] <= part.start < pair.starts[index + 1]:
                updater.move(place, gradient[part].clone(), options.rate, options=options)
        pair.optimizers[0].param_groups[0]["lr"] *= 0.5
    assert torch.allclose(parameters, pair.flat(), atol=1e-7)


def test_state_goes_from_slices_to_the_whole_and_back() -> None:
    pair = Pair()
    parameters = pair.flat()
    updater = updater_of(pair, parameters)
    whole = pair.flat()
    joint = pair.factory.build(whole)
    assert isinstance(joint.rule, JointRule)

    def step_whole(index: int, gradient: torch.Tensor) -> None:
        assert isinstance(joint.rule, JointRule)
        bounds = list(pairwise(pair.starts))[index]
        joint.set_options(pair.options().groups)
        joint.rule.rules[index].update(gradient[slice(*bounds)], pair.options().rate)

    for number, index in enumerate((0, 1, 0)):
        step_whole(index, pair.step_alone(index, number))
    updater.load_state(joint.part((0, len(whole))))
    parameters.copy_(whole)
    for number, index in enumerate((1, 0, 0)):
        gradient = pair.step_alone(index, 10 + number)
        for place, part in enumerate(updater.parts):
            if pair.starts[index] <= part.start < pair.starts[index + 1]:
                updater.move(
                    place, gradient[part].clone(), pair.options().rate, options=pair.options()
                )
    joint.load_state(updater.state())
    whole.copy_(parameters)
    step_whole(1, pair.step_alone(1, 20))
    assert torch.allclose(whole, pair.flat(), atol=1e-7)
