"""`fit` for Keras 3 models: arrays and a model in, a trained model out.

Keras' `fit` fails under both of TensorFlow's multi-machine strategies; this one writes the arrays
to files and trains a job on `backend: tensorflow`, or a script with Keras on torch. For notebooks
and programs; job files do not need it. Imports no framework: a model is any object with `weights`.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from phalanx import api
from phalanx.errors import SpecError
from phalanx.records.events import Epoch
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.spec.loader import job_from_mapping

_CURVES = {
    "loss": "train_loss",
    "accuracy": "train_accuracy",
    "val_loss": "val_loss",
    "val_accuracy": "val_accuracy",
}


class _Variable(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...

    def assign(self, value: npt.NDArray[np.float32]) -> object: ...


class _Model(Protocol):
    @property
    def weights(self) -> Sequence[_Variable]: ...


@dataclass(frozen=True)
class Fitted:
    """Result of a training.

    Attributes:
        summary: As `phalanx train --json` prints it.
        history: By epoch, under the names that Keras uses.
        weights: The trained ones, in the order of the model; None: those of the checkpoint.
    """

    summary: Summary
    history: dict[str, list[float | None]] = field(default_factory=dict)
    weights: Sequence[npt.NDArray[np.float32]] | None = None

    def load_into(self, model: _Model) -> None:
        """Load the trained weights into a model.

        Args:
            model: Made by the same function.

        Raises:
            SpecError: It is another model.
        """
        arrays = self._arrays()
        shapes = [tuple(one.shape) for one in model.weights]
        if shapes != [array.shape for array in arrays]:
            raise SpecError("the trained weights do not fit this model; make it the same way")
        for variable, array in zip(model.weights, arrays, strict=True):
            variable.assign(array)

    def _arrays(self) -> list[npt.NDArray[np.float32]]:
        if self.weights is not None:
            return list(self.weights)
        newest = max((Path(self.summary.run_dir) / "checkpoints").glob("samples-*.safetensors"))
        with safe_open(newest, framework="np") as file:
            order = msgspec.json.decode((file.metadata() or {})["variables"], type=list[str])
            return [file.get_tensor(name) for name in order]


def fit(
    model: Callable[..., object] | str | object,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    validation_split: float = 0.0,
    workers: int = 1,
    strategy: str | Mapping[str, object] = "allreduce",
    optimizer: str | Mapping[str, object] = "adam",
    settings: Mapping[str, object] | None = None,
    runs: Path = api.DEFAULT_RUNS,
    backend: Literal["tensorflow", "torch"] | None = None,
) -> Fitted:
    """Train a Keras model on several processes.

    Args:
        model: A function that returns a `keras.Model` with one output per class (logits), or its
            `package.module:function`. It is called in other processes, so it must be importable
            there: not a lambda, and not from a notebook. On torch also a compiled model itself,
            which has the trained weights afterwards.
        x: Inputs, the first axis counts samples.
        y: Labels as whole numbers.
        batch_size: Samples per step over all workers together.
        epochs: Passes over the samples.
        validation_split: Share of the samples that is held out and measured after every epoch.
        workers: Processes that compute gradients.
        strategy: As in a job file.
        optimizer: As in a job file; on torch the name of Keras' one, unless the model is compiled.
        settings: Any other part of a job file.
        runs: Where the run directory is made.
        backend: Of Keras; None: torch if Keras has been imported on it, else tensorflow.

    Returns:
        Summary and history; `load_into` gives a model of yours the weights.
    """
    shared = {
        "workers": workers,
        "strategy": strategy if isinstance(strategy, str) else dict(strategy),
        **(settings or {}),
    }
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        arrays = Path(folder) / "arrays.npz"
        np.savez(arrays, x=np.asarray(x), y=np.asarray(y))
        if (backend or _backend()) == "torch":
            asked = {
                "batch_size": batch_size,
                "epochs": epochs,
                "validation_split": validation_split,
                "optimizer": optimizer,
                "num_classes": int(np.max(np.asarray(y))) + 1,
                "seed": shared.get("seed", 0),
            }
            return _fit_on_torch(model, asked, shared, Path(folder), runs)
        job = job_from_mapping(
            {
                "backend": "tensorflow",
                "model": _named(model),
                "data": {
                    "name": str(arrays),
                    "normalize": "none",
                    "validation": validation_split,
                },
                "batch": {"global": batch_size},
                "epochs": epochs,
                "optimizer": optimizer if isinstance(optimizer, str) else dict(optimizer),
                **shared,
            }
        )
        summary = api.train(job, runs=runs, cache_root=Path(folder) / "cache")
    return Fitted(summary, _history(RunDir(Path(summary.run_dir))))


def _backend() -> str:
    """Return what Keras runs on; it decides when it is imported."""
    keras: Any = sys.modules.get("keras")
    return "torch" if keras is not None and keras.backend.backend() == "torch" else "tensorflow"


_SCRIPT = """import os, sys
os.environ["KERAS_BACKEND"] = "torch"
sys.path[:0] = {paths!r}
from pathlib import Path
from phalanx.integrations.keras_torch import run_fit
run_fit(Path(__file__).parent)
"""


def _fit_on_torch(
    model: Any, asked: dict[str, Any], job: dict[str, Any], folder: Path, runs: Path
) -> Fitted:
    """Train as the script of a run; it finds the model in the same folder, or by its name."""
    is_made = hasattr(model, "weights")
    if is_made:
        if not getattr(model, "compiled", False):
            raise SpecError("the Keras model is not compiled; call model.compile() first")
        model.save(folder / "model.keras")
    asked["model"] = None if is_made else _named(model)
    (folder / "fit.json").write_text(json.dumps(asked))
    script = folder / "fit.py"
    script.write_text(_SCRIPT.format(paths=[str(Path.cwd()), *filter(None, sys.path)]))
    spec = job_from_mapping({"program": {"script": str(script)}, **job})
    summary = api.train(spec, runs=runs)
    history = json.loads((folder / "history.json").read_text())
    with np.load(folder / "weights.npz") as saved:
        weights = [saved[name] for name in saved.files]
    fitted = Fitted(summary, history, weights)
    if is_made:
        fitted.load_into(model)
    return fitted


def _named(model: object) -> str:
    if isinstance(model, str):
        return model
    name = getattr(model, "__qualname__", "")
    if not inspect.isfunction(model) or not name.isidentifier():
        raise SpecError("the model must be a function of a module: other processes call it too")
    module = model.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise SpecError(
                f"{name} exists in this session only; put it into a file and import it from there"
            )
        module = Path(file).stem
    return f"{module}:{name}"


def _history(run: RunDir) -> dict[str, list[float | None]]:
    found = {
        event.epoch: event
        for process in ("worker-0", "controller")
        for event in read_events(run.events_path(process), Epoch)
        if isinstance(event, Epoch)
    }
    epochs = [found[number] for number in sorted(found)]
    return {name: [getattr(one, key) for one in epochs] for name, key in _CURVES.items()}
