"""What was trained can be taken out: by name, with its preparation, under every strategy."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file
from torch import nn

import phalanx
from phalanx.errors import SpecError, StoreError
from phalanx.results.trained_run import TrainedRun
from support.runs import Place

JOB: dict[str, Any] = {
    "name": "results",
    # Batch norm: statistics and counters must come out as well as weights.
    "model": {"name": "resnet", "n": 1},
    "data": {"name": "digits", "validation": 0.1},
    "epochs": 1,
    "workers": 2,
    "threads": 1,
    "optimizer": {"name": "adam", "lr": 0.003},
    "checkpoint": {"best": None},
}
STRATEGIES: list[Any] = [
    "allreduce",
    {"name": "parameter_server", "consistency": "bsp"},
    {"name": "switch", "at": 0.5},
    "split",
]


def trained(place: Place, **changes: Any) -> TrainedRun:
    summary = place.summary(place.write_job(JOB | changes))
    return phalanx.open_run(place.folder / summary["run_dir"])


def accuracy(run: TrainedRun) -> float:
    part = run.open_data().test
    predicted = run.predict(part).argmax(axis=1)
    return float((predicted == part.targets[part.rows]).mean())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_model_taken_out_is_as_accurate_as_the_run_says(place: Place, strategy: Any) -> None:
    run = trained(place, strategy=strategy)
    assert accuracy(run) == pytest.approx(run.summary.test_accuracy, abs=1e-9)
    written = load_file(run.path / "model.safetensors")
    state = run.state_dict()
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)


def test_the_weights_of_plain_ddp_come_out_the_same_way(place: Place) -> None:
    run = trained(place, backend="ddp")
    assert accuracy(run) == pytest.approx(run.summary.test_accuracy, abs=1e-9)


def test_weights_fit_the_network_that_was_trained_and_no_other(place: Place) -> None:
    run = trained(place, model={"name": "mlp", "hidden": [32]}, workers=1, strategy="single")
    model = run.load_model()
    assert not model.training
    before = model.state_dict()
    with pytest.raises(SpecError, match="do not fit"):
        run.load_into(nn.Linear(64, 10))
    assert run.load_model().state_dict().keys() == before.keys()


def test_files_for_other_programs_hold_the_same_network(place: Place) -> None:
    run = trained(place, model={"name": "cnn"})
    for name in ("m.safetensors", "m.pt", "m.onnx"):
        done = place.run("export", "weights", "last", "-o", name)
        assert done.returncode == 0, done.stderr
    state = run.state_dict()
    from_torch = torch.load(place.folder / "m.pt", weights_only=True)
    from_file = load_file(place.folder / "m.safetensors")
    for found in (from_torch, from_file):
        assert all(torch.equal(found[name], state[name]) for name in state)
    samples = run.open_data().test.inputs[:5]
    network = ReferenceEvaluator(onnx.load(place.folder / "m.onnx"))
    (outputs,) = network.run(None, {"inputs": run.prepare(samples).numpy()})
    np.testing.assert_allclose(outputs, run.predict(samples), atol=1e-4)
    done = place.run("export", "weights", "last", "-o", "m.bin")
    assert done.returncode == 2
    assert "end it with .safetensors, .pt or .onnx" in done.stderr
    for name in ("m.safetensors", "m.pt"):
        with pytest.raises(StoreError, match=f"cannot write absent/{name}: No such file"):
            run.save(Path("absent", name))
    done = place.run("export", "weights", "last", "-o", "absent/m.onnx")
    assert done.returncode == 6
    assert "cannot write absent/m.onnx: No such file" in done.stderr


def test_predict_prepares_new_samples_as_the_training_did(place: Place) -> None:
    """Not by their own statistics: a file of one class would be centred on itself."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    inputs = rng.normal(size=(600, 8)).astype(np.float32) + labels[:, None] * 3
    np.savez(place.folder / "all.npz", x=inputs, y=labels)
    trained(
        place,
        model={"name": "mlp", "hidden": [16]},
        data={"name": "all.npz", "validation": 0.1},
        epochs=8,
        workers=1,
        strategy="single",
    )
    of_two = labels == 2
    np.savez(place.folder / "two.npz", x=inputs[of_two], y=labels[of_two])
    done = place.run("predict", "last", "two.npz", "--part", "train", "--outputs")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    right = [row["predicted"] == row["target"] == "2" for row in rows]
    assert sum(right) / len(right) > 0.9
    assert sum(key.startswith("output_") for key in rows[0]) == 3
    done = place.run("predict", "last", "two.npz", "--part", "train", "-o", "found.csv")
    assert f"{len(rows):,} predictions: found.csv" in done.stdout
    done = place.run("predict", "last", "two.npz", "--part", "tests")
    assert done.returncode == 2
    assert "there is no part 'tests'" in done.stderr


def test_new_rows_of_a_table_are_predicted_by_the_names_of_the_training(place: Place) -> None:
    rng = np.random.default_rng(0)
    kinds = np.array(["ash", "elm", "oak"])[rng.integers(0, 3, 300)]
    size = np.select([kinds == "ash", kinds == "elm"], [0.0, 4.0], 8.0) + rng.normal(size=300)
    rows = [f"{one:.3f},{-one:.3f}" for one in size]
    table = [f"{row},{kind}" for row, kind in zip(rows, kinds, strict=True)]
    (place.folder / "trees.csv").write_text("\n".join(["a,b,kind", *table, ""]))
    trained(
        place,
        model={"name": "mlp", "hidden": [16]},
        data={"name": "trees.csv", "target_key": "kind", "normalize": "standard"},
        epochs=12,
        workers=1,
        strategy="single",
    )
    oaks = [number for number, kind in enumerate(kinds) if kind == "oak"]
    (place.folder / "new.csv").write_text("\n".join(["a,b", *(rows[one] for one in oaks), ""]))
    (place.folder / "oaks.csv").write_text(
        "\n".join(["a,b,kind", *(table[one] for one in oaks), ""])
    )
    for name, columns in (("new.csv", 2), ("oaks.csv", 3)):
        done = place.run("predict", "last", name)
        assert done.returncode == 0, done.stderr
        head, *found = csv.reader(io.StringIO(done.stdout))
        assert len(head) == columns
        assert len(found) == len(oaks), "every row, in order"
        assert sum(row[1] == "oak" for row in found) > 0.9 * len(oaks)
    (place.folder / "more.csv").write_text("a,b,c\n1,2,3\n")
    done = place.run("predict", "last", "more.csv")
    assert done.returncode == 2, done.stderr
    assert "more.csv has 3 columns of inputs and the network reads 2" in done.stderr


def test_records_are_tables_of_steps_epochs_and_resources(place: Place) -> None:
    run = trained(place, model={"name": "mlp", "hidden": [16]})
    steps = run.table("steps")
    assert set(steps.column("process").to_pylist()) == {"worker-0", "worker-1"}
    assert run.table("epochs").num_rows >= 1
    with pytest.raises(SpecError, match="there is no table 'losses'"):
        run.table("losses")  # type: ignore[arg-type]


def test_a_run_without_checkpoints_says_so(place: Place) -> None:
    run = trained(place, checkpoint={"every_epochs": None, "best": None})
    assert not (run.path / "model.safetensors").exists()
    with pytest.raises(StoreError, match="has no checkpoint; set 'checkpoint' in its job"):
        run.state_dict()


def test_opening_a_run_is_offered_without_loading_torch() -> None:
    code = "import sys, phalanx; assert 'open_run' in dir(phalanx); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_user_loads_a_state_dict_by_hand(place: Place) -> None:
    """The names are those of the module that the user's own function builds."""
    Path(place.folder / "my_net.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), "
        "nn.Linear(16, num_classes))\n"
    )
    run = trained(place, model="my_net:build")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    run.load_into(model)
    part = run.open_data().test
    with torch.inference_mode():
        outputs = model(run.prepare(part.inputs[part.rows])).argmax(1).numpy()
    found = float((outputs == part.targets[part.rows]).mean())
    assert found == pytest.approx(run.summary.test_accuracy, abs=1e-9)
