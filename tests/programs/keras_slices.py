"""Compare Keras' optimisers with copies of them over slices; prints the largest differences."""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import pairwise

os.environ["KERAS_BACKEND"] = "torch"  # noqa: TID251 (as users do)

import keras
import torch

from phalanx.engine.layout import FlatLayout, Range, Slot
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.recipe import OptimizerRecipe
from phalanx.integrations.keras_optimizer import KerasOptimizer
from phalanx.integrations.keras_rule import SERVED
from phalanx.spec.torch_optimizer import TorchOptimizerSpec

STEPS = 5


def model_of(optimizer: keras.Optimizer, **options: object) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, **options), keras.layers.Dense(2)]
    )
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


def layout_of(shapes: dict[str, tuple[int, ...]]) -> FlatLayout:
    slots, start = [], 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        slots.append(Slot(name, shape, start, stop, channels_last=False))
        start = stop
    return FlatLayout(tuple(slots))


def difference(optimizer: keras.Optimizer) -> tuple[str, float]:
    """Step a model by Keras, and a flat copy of it by as many servers as the optimiser allows."""
    model = model_of(optimizer)
    seen = KerasOptimizer.of(model)
    named = {f"p{i}": one.value for i, one in enumerate(model.trainable_variables)}
    layout = layout_of({name: tuple(one.shape) for name, one in named.items()})
    flat = torch.cat([one.detach().flatten() for one in named.values()])
    served = seen.served_as()
    recipe = OptimizerRecipe.of(served, named.items(), cuts=served.cuts)
    factory = OptimizerFactory(
        TorchOptimizerSpec(name="torch.optim:SGD", lr=1.0), layout, recipe=recipe
    )
    cuts = factory.recipe.cuts
    places = {"entry": [7], "tensor": [layout.slots[1].start], "whole": []}[cuts]
    bounds = [0, *places, layout.size]
    parts = [Range(a, b) for a, b in pairwise(bounds)]
    slices = [factory.build(flat[part.start : part.stop], part) for part in parts]
    for _ in range(STEPS):
        gradient = torch.randn(layout.size)
        for slot, one in zip(layout.slots, named.values(), strict=True):
            one.grad = slot.view(gradient).clone()
        rate = float(optimizer.learning_rate)
        for part, rule in zip(parts, slices, strict=True):
            rule.step(gradient[part.start : part.stop].clone(), rate)
        seen.step()
    whole = torch.cat([one.detach().flatten() for one in named.values()])
    return cuts, float((whole - flat).abs().max())


def refusal(optimizer: keras.Optimizer, **options: object) -> str | None:
    return KerasOptimizer.of(model_of(optimizer, **options)).why_not_served


optimizers = keras.optimizers
decay = optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
tried = {name: getattr(optimizers, name)(0.05) for name in SERVED}
tried |= {
    "momentum": optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "schedule": optimizers.Adam(decay, weight_decay=0.01),
    "clipnorm": optimizers.Adam(0.05, clipnorm=0.1),
    "global_clipnorm": optimizers.Adam(0.05, global_clipnorm=0.1),
}
refused = {
    "Adafactor": refusal(optimizers.Adafactor(0.1)),
    "use_ema": refusal(optimizers.SGD(0.1, use_ema=True)),
    "constraint": refusal(optimizers.SGD(0.1), kernel_constraint=keras.constraints.NonNeg()),
}
apart = {name: difference(one) for name, one in tried.items()}
sys.stdout.write(json.dumps({"apart": apart, "refused": refused}))
