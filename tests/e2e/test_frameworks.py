"""Hugging Face's Trainer, Lightning and Keras under `phalanx launch`: equal to one process."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from support.runs import LIMIT_S, Place

PROGRAMS = Path(__file__).parents[1] / "programs"
EXTRAS = ("hf", "lightning_fit", "fabric_loop")
LOCAL_SGD = "{name: local_sgd, every: 2}"


SAMPLES = {"hf": 2 * 72, "keras_fit": 3 * 83}
"""Of a run; others use 3 * 90."""
BSP = "{name: parameter_server, consistency: bsp}"
SWITCH = "{name: switch, at: 0.5, phases: [allreduce, {strategy: {name: parameter_server}}]}"


def need_package_of(name: str) -> None:
    """Skip where an extra is missing; it is not imported here, where it would change settings."""
    package = {"hf": "transformers", "keras_fit": "keras"}.get(name, "lightning")
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def launched(
    place: Place, name: str, *arguments: str, options: tuple[str, ...] = ()
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Launch a test program with its options to its end; returns what it wrote, and the summary."""
    out = place.folder / "out.pt"
    program = str(PROGRAMS / f"{name}.py")
    done = place.run("launch", "--json", *arguments, program, "--out", str(out), *options)
    assert done.returncode == 0, done.stderr
    return torch.load(out), json.loads(done.stdout)


def alone(place: Place, name: str, *options: str) -> list[torch.Tensor]:
    """Run a test program by itself; returns what it has written."""
    out = place.folder / "alone.pt"
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), "--out", str(out), *options]
    subprocess.run(command, cwd=place.folder, check=True, timeout=LIMIT_S, capture_output=True)
    found: list[torch.Tensor] = torch.load(out)
    return found


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def test_fit_of_keras_on_two_workers_equals_one(place: Place) -> None:
    found, summary = launched(place, "keras_fit", "--workers", "2")
    assert difference(alone(place, "keras_fit"), found) < 1e-5
    assert (summary["epochs"], summary["global_batch"]) == (3, 13)
    assert summary["samples"] == 3 * 83
    assert summary["val_accuracy"] > 0.5


def test_a_plain_fit_of_a_launched_script_trains_with_all_workers(place: Place) -> None:
    found, summary = launched(place, "plain_keras", "--workers", "2")
    assert difference(alone(place, "plain_keras"), found) < 1e-5
    assert (summary["epochs"], summary["global_batch"], summary["samples"]) == (2, 12, 180)


ASKS_ITSELF = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, phalanx, torch
from torch.utils.data import DataLoader, TensorDataset

session = phalanx.session()
x = torch.ones(24, 2)
warm = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
warm.compile("sgd", "mse")
warm.fit(x.numpy(), x[:, :1].numpy(), epochs=1, verbose=0)  # not what is distributed
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.setup(model, optimizer)
feed = session.data(DataLoader(TensorDataset(x), 6))
for _ in session.epochs(2):
    for (rows,) in feed:
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.full
def test_fit_stays_its_own_in_a_script_that_asks_for_its_session(place: Place) -> None:
    (place.folder / "train.py").write_text(ASKS_ITSELF)
    done = place.run("launch", "--json", "--workers", "2", "train.py")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["epochs"], summary["samples"], summary["parameters"]) == (2, 48, 3)


FROM_PYTHON = """
import json, os
from pathlib import Path
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np, phalanx
from nets import build

x = np.random.default_rng(1).normal(size=(80, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
keras.utils.set_random_seed(1)
model = build((6,), 2)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = model.evaluate(x, y, verbose=0)
settings = {"batch_size": 8, "epochs": 2, "workers": 2, "runs": Path("runs")}
fitted = phalanx.fit(model, x, y, **settings)
named = phalanx.fit(build, x, y, validation_split=0.25, strategy="local_sgd", **settings)
print(json.dumps([before, model.evaluate(x, y, verbose=0), fitted.history, named.history]))
"""
NETS = """
import keras

def build(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(num_classes)])
"""


@pytest.mark.full
def test_fit_on_torch_from_python_gives_the_model_its_weights(place: Place) -> None:
    (place.folder / "nets.py").write_text(NETS)
    (place.folder / "main.py").write_text(FROM_PYTHON)
    command = [sys.executable, "main.py"]
    done = subprocess.run(
        command, cwd=place.folder, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    before, after, fitted, named = json.loads(done.stdout.splitlines()[-1])
    assert after < before
    assert len(fitted["loss"]) == 2
    assert set(named) == {"loss", "accuracy", "val_loss", "val_accuracy"}


@pytest.mark.full
@pytest.mark.parametrize("name", EXTRAS)
def test_two_workers_equal_the_program_by_itself(place: Place, name: str) -> None:
    need_package_of(name)
    found, summary = launched(place, name, "--workers", "2")
    assert difference(alone(place, name), found) < 1e-5
    assert summary["state"] == "finished"
    if name != "fabric_loop":
        assert summary["val_loss"] is not None


@pytest.mark.full
@pytest.mark.parametrize("name", [*EXTRAS, "keras_fit"])
def test_local_sgd_trains_all_samples(place: Place, name: str) -> None:
    need_package_of(name)
    _, summary = launched(place, name, "--workers", "2", "--strategy", LOCAL_SGD)
    assert (summary["state"], summary["samples"]) == ("finished", SAMPLES.get(name, 3 * 90))


@pytest.mark.full
@pytest.mark.parametrize("name", [*EXTRAS, "keras_fit"])
def test_servers_make_the_updates_of_their_loops(place: Place, name: str) -> None:
    need_package_of(name)
    # Labels of several batches would have to be counted before any is computed.
    options = ("--accumulate", "1") if name == "hf" else ()
    found, summary = launched(place, name, "--workers", "2", "--strategy", BSP, options=options)
    assert difference(alone(place, name, *options), found) < 1e-5
    assert (summary["state"], summary["samples"]) == ("finished", SAMPLES.get(name, 3 * 90))


@pytest.mark.full
def test_copies_of_keras_optimisers_over_slices_step_as_the_whole_one() -> None:
    # Apart from this process, where Keras may run on TensorFlow.
    command = [sys.executable, str(PROGRAMS / "keras_slices.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(apart for _, apart in found["apart"].values()) < 1e-6
    cuts = {name: cuts for name, (cuts, _) in found["apart"].items() if cuts != "entry"}
    assert cuts == {"clipnorm": "tensor", "global_clipnorm": "whole"}
    wrong = {"Adafactor": "Adafactor", "use_ema": "use_ema", "constraint": "has a constraint"}
    for what, words in wrong.items():
        assert words in found["refused"][what]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("hf", "{name: parameter_server, consistency: ssp, staleness: 2}"),
        ("lightning_fit", SWITCH),
        ("fabric_loop", "{name: parameter_server, consistency: async}"),
        ("keras_fit", "{name: parameter_server, consistency: async}"),
        ("keras_fit", SWITCH),
    ],
)
def test_stale_updates_use_every_sample(place: Place, name: str, strategy: str) -> None:
    need_package_of(name)
    options = ("--accumulate", "1") if name == "hf" else ()
    _, summary = launched(place, name, "--workers", "2", "--strategy", strategy, options=options)
    assert (summary["state"], summary["samples"]) == ("finished", SAMPLES.get(name, 3 * 90))


@pytest.mark.full
def test_what_servers_cannot_do_for_a_framework_is_refused(place: Place) -> None:
    need_package_of("hf")
    program = str(PROGRAMS / "hf.py")
    done = place.run("launch", "--workers", "2", "--strategy", BSP, program)
    assert done.returncode == 2
    assert "needs the counts of all workers" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "step", "options"),
    [
        # Its epoch is not a whole number of updates of three batches: resumed at the end of one.
        ("hf", 5, ()),
        ("lightning_fit", 6, ("--set", "checkpoint.every_steps=1")),
        ("keras_fit", 11, ()),
    ],
)
def test_a_killed_run_is_resumed_to_the_same_result(
    place: Place, name: str, step: int, options: tuple[str, ...]
) -> None:
    need_package_of(name)
    out = place.folder / "out.pt"
    program = str(PROGRAMS / f"{name}.py")
    (place.folder / "fault").write_text(str(step))
    done = place.run("launch", "--workers", "2", *options, program, "--out", str(out))
    assert done.returncode != 0
    assert not (place.folder / "fault").exists()
    done = place.run("launch", "--json", "--resume", "last")
    assert done.returncode == 0, done.stderr
    # Keras' history begins again with the resumed run.
    parameters = slice(-3 if name == "keras_fit" else None)
    assert difference(alone(place, name)[parameters], torch.load(out)[parameters]) < 1e-5
