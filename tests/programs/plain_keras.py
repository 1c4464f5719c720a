"""A Keras script for one process: a plain `fit`, and not a word of Phalanx."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"  # noqa: TID251 (as users do)

import keras
import torch
from common import arguments, images

args = arguments(epochs=2)
keras.utils.set_random_seed(6)
model = keras.Sequential(
    [
        keras.Input((1, 8, 8)),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(4),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
x, y = (one.numpy() for one in images(90))
# Keras and a session shuffle differently.
history = model.fit(x, y, batch_size=12, epochs=args.epochs, shuffle=False, verbose=0)
if args.out is not None:
    values = [torch.tensor(history.history[name]) for name in ("loss", "accuracy")]
    torch.save([*(p.detach().clone() for p in model.parameters()), *values], args.out)
