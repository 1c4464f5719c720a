"""Train Keras 3 models on its torch backend: `model.fit` with the workers of `phalanx launch`.

Keras keeps its loop, metrics and callbacks. What would make several workers differ from one is
refused. Called by users' scripts, and by the script that `phalanx.fit` starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from phalanx.errors import SpecError
from phalanx.integrations.epoch_feed import EpochFeed
from phalanx.integrations.keras_optimizer import KerasOptimizer
from phalanx.program.current import running_session
from phalanx.program.current import session as current_session
from phalanx.program.session import ScriptSession

_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Callbacks that write files: only the chief has them."""


def distribute(model: Any) -> Any:
    """Let `model.fit` train with all workers, and return the model.

    Args:
        model: A compiled Keras model on the torch backend.

    Raises:
        SpecError: It cannot be trained so that the number of workers makes no difference.
    """
    if keras.backend.backend() != "torch":
        raise SpecError(
            f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=torch before it is "
            "imported"
        )
    _refuse(model)
    if getattr(model, "_shares_fit", False):
        return model
    model.fit = SharedFit(model, current_session(), type(model).fit)
    model._shares_fit = True
    return model


def fit_shared(model: Any, fit: Callable[..., Any], *args: Any, **others: Any) -> Any:
    """Train by a plain `fit` call of a launched script with all workers.

    Args:
        model: A compiled Keras model on the torch backend.
        fit: Its own `fit`.
        args: Of the call.
        others: Of the call.

    Raises:
        SpecError: It cannot be trained so that the number of workers makes no difference.
    """
    _refuse(model)
    return SharedFit(model, running_session(), fit)(*args, **others)


def _refuse(model: Any) -> None:
    if not getattr(model, "compiled", False):
        raise SpecError("the Keras model is not compiled; call model.compile() first")
    masked = [one.name for one in model.layers if getattr(one, "mask_zero", False)]
    masked += [one.name for one in model.layers if isinstance(one, keras.layers.Masking)]
    if masked:
        raise SpecError(
            f"layer '{masked[0]}' masks positions, so that Keras' loss is a mean over those that "
            "are left, which workers cannot weigh; give sample weights instead"
        )
    losses = model.loss if isinstance(model.loss, list | tuple) else [model.loss]
    losses = list(model.loss.values()) if isinstance(model.loss, dict) else losses
    for loss in losses:
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction != "sum_over_batch_size":
            raise SpecError(
                f"a loss with reduction='{reduction}' is not a mean over samples, which is what "
                "workers weigh their shares by; use 'sum_over_batch_size'"
            )
    if model.jit_compile is True:
        raise SpecError("compile(jit_compile=True) hides the backward pass; leave it out")


class SharedFit:
    """Stands in for the `fit` of one model.

    Args:
        model: Whose `fit` it is.
        session: Of the script.
        fit: Keras' own.
    """

    def __init__(self, model: Any, session: ScriptSession, fit: Callable[..., Any]) -> None:
        self._model = model
        self._session = session
        self._fit = fit

    def __call__(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        **others: Any,
    ) -> Any:
        """Train as `keras.Model.fit` does; a batch is shared out over the workers.

        Raises:
            SpecError: An argument cannot be had with several workers.
        """
        for name, value in others.items():
            if value is not None and name not in ("validation_batch_size", "validation_freq"):
                raise SpecError(f"fit({name}=...) cannot be shared out over workers; leave it out")
        if validation_split:
            (x, y, sample_weight), validation_data = _split(x, y, sample_weight, validation_split)
        loader = (
            x if isinstance(x, DataLoader) else _loader(x, y, sample_weight, batch_size, shuffle)
        )
        self._build(loader)
        feed = EpochFeed(self._session, loader, epochs=epochs, on_end=self._unite)
        optimizer = KerasOptimizer.of(self._model)
        self._session.setup(self._model, optimizer, extra={"feed": feed})
        self._model.optimizer.apply = lambda *_: optimizer.apply()
        begin = feed.begin()
        wanted = [one for one in callbacks or () if self._session.chief or not _writes(one)]
        try:
            history = self._fit(
                self._model,
                _FeedLoader(loader, feed),
                epochs=epochs,
                initial_epoch=epochs if begin is None else begin,
                verbose=verbose if self._session.chief else 0,
                callbacks=[_Reporter(self._session), *wanted],
                validation_data=validation_data,
                shuffle=False,  # the loader has its own order
                **others,
            )
        finally:
            del self._model.optimizer.apply
        feed.finish()
        return history

    def _build(self, loader: Any) -> None:
        """Build everything that Keras would build of the first batch, which is not drawn yet."""
        head = next(iter(DataLoader(loader.dataset, 1, collate_fn=loader.collate_fn)))
        data = head if isinstance(head, tuple) else tuple(head)
        self._model.evaluate(*data[:2], batch_size=1, verbose=0)
        if not self._model.optimizer.built:
            self._model.optimizer.build(self._model.trainable_variables)

    def _unite(self) -> None:
        """Add up metrics over workers, and average statistics such as those of batch norm."""
        if self._session.size == 1:
            return
        self._add(self._model.metrics_variables, 1.0)
        floats = [v for v in self._model.non_trainable_variables if v.dtype.startswith("float")]
        self._add(floats, 1.0 / self._session.size)

    def _add(self, variables: Sequence[Any], factor: float) -> None:
        arrays = [keras.ops.convert_to_numpy(one) for one in variables]
        summed = np.asarray(self._session.total([v for a in arrays for v in a.ravel().tolist()]))
        start = 0
        for variable, array in zip(variables, arrays, strict=True):
            part = summed[start : start + array.size] * factor
            variable.assign(part.reshape(array.shape).astype(array.dtype))
            start += array.size


def _writes(callback: Any) -> bool:
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise SpecError("BackupAndRestore is not needed: 'phalanx launch --resume' continues a run")
    return isinstance(callback, _WRITERS)


def _split(x: Any, y: Any, weight: Any, share: float) -> tuple[tuple[Any, Any, Any], Any]:
    """Hold out the last samples, as Keras does."""
    flat = keras.tree.flatten((x, y, weight))
    place = int(np.floor(len(flat[0]) * (1.0 - share)))
    kept = keras.tree.map_structure(lambda a: a if a is None else a[:place], (x, y, weight))
    held = keras.tree.map_structure(lambda a: a if a is None else a[place:], (x, y, weight))
    return kept, tuple(one for one in held if one is not None)


def _loader(x: Any, y: Any, weight: Any, batch_size: int | None, shuffle: bool) -> DataLoader[Any]:
    given = tuple(one for one in (x, y, weight) if one is not None)
    flat = keras.tree.flatten(given)
    if not all(hasattr(one, "__array__") or isinstance(one, torch.Tensor) for one in flat):
        raise SpecError("model.fit() takes arrays, tensors or a torch DataLoader here")
    tensors = [torch.as_tensor(np.asarray(one)) for one in flat]

    def collate(rows: list[tuple[torch.Tensor, ...]]) -> Any:
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        return keras.tree.pack_sequence_as(given, columns)

    return DataLoader(
        TensorDataset(*tensors), batch_size or 32, shuffle=shuffle, collate_fn=collate
    )


class _FeedLoader(DataLoader[Any]):
    """The feed as something that Keras takes for a DataLoader."""

    def __init__(self, loader: DataLoader[Any], feed: EpochFeed) -> None:
        super().__init__(loader.dataset, loader.batch_size)
        self.__dict__["feed"] = feed

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.__dict__["feed"])

    @override
    def __len__(self) -> int:
        return len(self.__dict__["feed"])


class _Reporter(keras.callbacks.Callback):
    """Record validation with the run; all workers have validated on the whole set."""

    def __init__(self, session: ScriptSession) -> None:
        super().__init__()
        self._session = session

    @override
    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        found = {
            name.removeprefix("val_"): (float(value), 1)
            for name, value in (logs or {}).items()
            if name.startswith("val_")
        }
        if found:
            self._session.report("validation", **found)


def run_fit(folder: Path) -> None:
    """Train what `phalanx.fit` wrote to a folder; the chief writes weights and history there."""
    asked = json.loads((folder / "fit.json").read_text())
    with np.load(folder / "arrays.npz") as arrays:
        x, y = arrays["x"], arrays["y"]
    keras.utils.set_random_seed(asked["seed"])
    model = _made(asked, folder, x)
    history = distribute(model).fit(
        x,
        y,
        batch_size=asked["batch_size"],
        epochs=asked["epochs"],
        validation_split=asked["validation_split"],
        verbose=0,
    )
    if current_session().chief:
        np.savez(folder / "weights.npz", *[keras.ops.convert_to_numpy(w) for w in model.weights])
        (folder / "history.json").write_text(json.dumps(history.history))


def _made(asked: dict[str, Any], folder: Path, x: np.ndarray[Any, Any]) -> Any:
    """Load the model, or call the function that makes it."""
    if asked["model"] is None:
        return keras.models.load_model(folder / "model.keras")
    module, _, name = asked["model"].partition(":")
    build: Callable[..., Any] = getattr(import_module(module), name)
    model = build(x.shape[1:], asked["num_classes"])
    if not model.compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(asked["optimizer"], loss, metrics=["accuracy"])
    return model
