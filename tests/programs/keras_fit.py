"""A Keras model on torch: `fit` with a schedule, metrics, regularisation and early stopping."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"  # noqa: TID251 (as users do)

import keras
import torch
from common import arguments, fail_once, images

import phalanx
from phalanx.integrations.keras_torch import distribute

args = arguments(epochs=3)
keras.utils.set_random_seed(6)
model = keras.Sequential(
    [
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
        keras.layers.Dense(4),
    ]
)


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        fail_once(phalanx.session().rank, int(model.optimizer.iterations.numpy()))


rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
model.compile(
    keras.optimizers.Adam(rate, global_clipnorm=0.5),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
x, y = (one.numpy() for one in images(104))
history = distribute(model).fit(
    x,
    y,
    batch_size=13,
    epochs=args.epochs,
    validation_split=0.2,
    verbose=2,
    callbacks=[keras.callbacks.EarlyStopping(patience=5), Fault()],
)
if args.out is not None and phalanx.session().chief:
    values = [torch.tensor(history.history[name]) for name in ("loss", "accuracy", "val_loss")]
    torch.save([*(p.detach().clone() for p in model.parameters()), *values], args.out)
