"""The call in the shape of `fit`: what it refuses before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

import phalanx
from phalanx.errors import SpecError
from phalanx.integrations.keras import Fitted
from support.scripted import make_summary


def build(num_classes: int) -> object:
    raise AssertionError("never called here")


class Variable:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.value: npt.NDArray[np.float32] | None = None

    def assign(self, value: npt.NDArray[np.float32]) -> None:
        self.value = value


class Model:
    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.weights = [Variable(shape) for shape in shapes]


@pytest.mark.parametrize("model", [lambda: None, Model, Model((1,))])
def test_a_model_that_other_processes_cannot_import_is_refused(model: object) -> None:
    with pytest.raises(SpecError, match="must be a function of a module"):
        phalanx.fit(model, np.zeros((4, 2)), np.zeros(4, int))  # type: ignore[arg-type]


def test_a_setting_that_tensorflow_cannot_express_is_refused(tmp_path: Path) -> None:
    arrays = np.zeros((4, 2), np.float32), np.zeros(4, int)
    with pytest.raises(SpecError, match="backend tensorflow has no strategy 'local_sgd'"):
        phalanx.fit(build, *arrays, workers=2, strategy="local_sgd", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_come_back_in_the_order_of_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    arrays = {
        "parameters/b": np.ones((2, 3), np.float32),
        "statistics/a": np.full(3, 2.0, np.float32),
        "optimizer/momentum_buffer/b": np.zeros((2, 3), np.float32),
    }
    order = '["parameters/b","statistics/a"]'
    save_file(arrays, folder / "samples-000000000010.safetensors", {"variables": order})
    fitted = Fitted(make_summary(run_dir=str(tmp_path)))
    model = Model((2, 3), (3,))
    fitted.load_into(model)
    for variable, name in zip(model.weights, ("parameters/b", "statistics/a"), strict=True):
        np.testing.assert_array_equal(variable.value, arrays[name])
    with pytest.raises(SpecError, match="do not fit this model"):
        replace(fitted).load_into(Model((3, 2), (3,)))
