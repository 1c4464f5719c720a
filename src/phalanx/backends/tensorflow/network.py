"""A model under a strategy: its variables and optimiser slots, and both as arrays.

A large variable may be partitioned over servers; a `StateArray` is what is in one place. Names and
arrays are those of whole variables, so that a state can move from one strategy to another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.backends.tensorflow.model import build_model
from phalanx.backends.tensorflow.rules import is_kernel
from phalanx.data.pipeline import Dataset
from phalanx.errors import EngineError
from phalanx.records.measures import ModelFigures
from phalanx.spec.job import JobSpec
from phalanx.store.numpy_tensors import Arrays

_PARAMETERS, _STATISTICS, _OPTIMIZER = "parameters/", "statistics/", "optimizer/"


@dataclass(frozen=True)
class StateArray:
    """A trainable variable, or the part of it that lies in one place, and its slots."""

    variable: tf.Variable
    slots: tuple[tf.Variable, ...]


@dataclass(frozen=True)
class _Whole:
    name: str
    variable: tf.Variable
    pieces: tuple[StateArray, ...] = ()


class Network:
    """A job's model, made in the scope of a strategy; only evaluated unless it `learns`."""

    def __init__(
        self, job: JobSpec, dataset: Dataset, strategy: tf.distribute.Strategy, *, learns: bool
    ) -> None:
        assert job.precision != "auto", "refused by the job's validator"
        self._strategy = strategy
        self._spec = job.optimizer
        with strategy.scope():
            self.model: keras.Model = build_model(
                job.model,
                input_shape=dataset.input_shape,
                num_classes=dataset.num_classes,
                seed=job.seed,
                precision=job.precision,
                modalities=dataset.modalities,
            )
            self._trained = [self._whole(one, learns) for one in self.model.trainable_variables]
        self._kept = [
            _Whole(one.path, one.value)
            for one in self.model.non_trainable_variables
            if one.dtype == "float32"
        ]

    @property
    def pieces(self) -> list[StateArray]:
        """All trained variables or their partitions, in one fixed order."""
        return [piece for whole in self._trained for piece in whole.pieces]

    @property
    def statistics(self) -> list[tf.Variable]:
        """Variables that change without being trained, such as batch-norm statistics."""
        return [whole.variable for whole in self._kept]

    @property
    def order(self) -> list[str]:
        """Names of arrays in a state, in the order of the model's weights."""
        trained = {one.name for one in self._trained}
        kept = {one.name for one in self._kept}
        paths = [one.path for one in self.model.weights]
        return [
            (_PARAMETERS if path in trained else _STATISTICS) + path
            for path in paths
            if path in trained | kept
        ]

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(int(np.prod(one.variable.shape)) for one in self._trained)

    def regularisation(self) -> float:
        """Return l2 · Σ w² over kernels."""
        if self._spec.l2 == 0:
            return 0.0
        kernels = [one for one in self._trained if is_kernel(one.variable)]
        return self._spec.l2 * float(
            sum(np.square(_read(one.variable).astype(np.float64)).sum() for one in kernels)
        )

    def figures(self) -> ModelFigures:
        """Return figures that identify the present parameters."""
        return ModelFigures(self.num_parameters, self._digest(), self.regularisation())

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for one in self._trained:
            digest.update(_read(one.variable).tobytes())
        return digest.hexdigest()

    def state(self, *, optimizer: bool = True) -> Arrays:
        """Return everything that a resumed run needs, as copies."""
        state = {_PARAMETERS + one.name: _read(one.variable) for one in self._trained}
        state |= {_STATISTICS + one.name: _read(one.variable) for one in self._kept}
        if optimizer:
            for index, slot in enumerate(self._spec.slots):
                for one in self._trained:
                    parts = [_read(piece.slots[index]) for piece in one.pieces]
                    state[f"{_OPTIMIZER}{slot}/{one.name}"] = np.concatenate(parts)
        return state

    def load_state(self, state: Arrays, *, optimizer: bool = True) -> None:
        """Restore what `state` returned, here or under another strategy.

        Raises:
            EngineError: The state is of another model or optimiser; nothing was changed.
        """
        wanted = state if optimizer else without_optimizer(state)
        given = {name: one.shape for name, one in wanted.items() if name.startswith(_ALL)}
        own = {name: one.shape for name, one in self.state(optimizer=optimizer).items()}
        if own != given:
            odd = sorted(name for name in own.keys() | given if own.get(name) != given.get(name))
            raise EngineError(
                f"the saved state does not fit this model and optimiser at '{odd[0]}'; resume with "
                "the model, optimizer and backend of the saved run"
            )
        for one in self._trained:
            _write(one.variable, state[_PARAMETERS + one.name])
        for one in self._kept:
            _write(one.variable, state[_STATISTICS + one.name])
        if not optimizer:
            return
        for index, slot in enumerate(self._spec.slots):
            for one in self._trained:
                rows = state[f"{_OPTIMIZER}{slot}/{one.name}"]
                for piece in one.pieces:
                    count = piece.variable.shape[0]
                    _write(piece.slots[index], rows[:count])
                    rows = rows[count:]

    def _whole(self, variable: keras.Variable, learns: bool) -> _Whole:
        own = variable.value
        parts = getattr(own, "variables", [own])
        names = self._spec.slots if learns else ()
        pieces = tuple(
            StateArray(part, tuple(self._slot(part, name) for name in names)) for part in parts
        )
        return _Whole(variable.path, own, pieces)

    def _slot(self, variable: tf.Variable, name: str) -> tf.Variable:
        # On the variable's device: the rule is to be computed there.
        with self._strategy.extended.colocate_vars_with(variable):
            return tf.Variable(tf.zeros(variable.shape), trainable=False, name=name)


_ALL = (_PARAMETERS, _STATISTICS, _OPTIMIZER)


def without_optimizer(state: Arrays) -> Arrays:
    """Return the entries of a state that an evaluation needs."""
    return {name: one for name, one in state.items() if not name.startswith(_OPTIMIZER)}


def _read(variable: tf.Variable) -> npt.NDArray[np.float32]:
    return np.asarray(tf.convert_to_tensor(_local(variable)).numpy())


def _write(variable: tf.Variable, value: npt.NDArray[np.float32]) -> None:
    variable.assign(value)


def _local(variable: tf.Variable) -> tf.Variable:
    """Return this process's copy; reading across replicas would be an exchange."""
    return variable.values[0] if isinstance(variable, tf.distribute.DistributedValues) else variable
