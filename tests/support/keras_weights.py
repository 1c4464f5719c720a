"""Read and write the weights of a Keras twin under torch's names and shapes.

Layers of a twin are named by the path of their counterpart, so only the parts of a layer need a
table. Arrays are NumPy's: neither side needs the other's framework. Used by the parity tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.errors import EngineError

Weights = dict[str, npt.NDArray[np.float32]]

_PARTS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_COUNTER = "num_batches_tracked"


def variables_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the variables of a twin by their names in torch's `state_dict`."""
    return {
        f"{layer.name}.{_PARTS[variable.name]}": variable
        for layer in model.layers
        for variable in layer.variables
    }


def torch_layout(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a kernel, or its gradient, as torch stores it; other arrays unchanged."""
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1)
    return array.T


def keras_layout(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a kernel, or its gradient, as Keras stores it; other arrays unchanged."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T


def read_weights(model: keras.Model) -> Weights:
    """Return the float entries of the counterpart's `state_dict`."""
    return {
        name: np.ascontiguousarray(torch_layout(tf.convert_to_tensor(variable.value).numpy()))
        for name, variable in variables_by_name(model).items()
    }


def write_weights(model: keras.Model, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Set the twin's weights and statistics to those of its counterpart.

    Args:
        model: From `build_model`, of a built-in network.
        weights: As `read_weights` gives them; torch's counters of batches are ignored.

    Raises:
        EngineError: Names or shapes do not agree; nothing was changed.
    """
    own = variables_by_name(model)
    given = {
        name: keras_layout(np.asarray(array))
        for name, array in weights.items()
        if not name.endswith(_COUNTER)
    }
    shapes = {name: tuple(variable.shape) for name, variable in own.items()}
    other_shapes = {name: array.shape for name, array in given.items()}
    if shapes != other_shapes:
        different = sorted(
            name
            for name in shapes.keys() | other_shapes.keys()
            if shapes.get(name) != other_shapes.get(name)
        )
        raise EngineError(f"weights do not fit the Keras network: {', '.join(different)}")
    for name, array in given.items():
        own[name].assign(array)
