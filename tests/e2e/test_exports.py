"""Profiling, timelines, blame and exports as a user asks for them, over one real run each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from support.runs import Place

JOB: dict[str, Any] = {
    "name": "seen",
    "model": "cnn",
    "data": "digits",
    "optimizer": {"name": "sgd", "lr": 0.05, "l2": 0.0001},
    "epochs": 3,
    "workers": 2,
}
# Its forward pass is slow on the second of two workers, whose cores differ.
SLOW_MODEL = """
import time
from pathlib import Path

from torch import nn


class Slow(nn.Sequential):
    def forward(self, inputs):
        if self.training and self.is_second:
            time.sleep(0.03)
        return super().forward(inputs)


def build(input_shape, num_classes):
    height, width, channels = input_shape
    model = Slow(nn.Flatten(), nn.Linear(height * width * channels, num_classes))
    mark = Path("first-worker")
    try:
        mark.touch(exist_ok=False)
        model.is_second = False
    except FileExistsError:
        model.is_second = True
    return model
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Place:
    return Place(tmp_path_factory.mktemp("exports"), cache)


@pytest.fixture(scope="module")
def profiled(place: Place) -> dict[str, Any]:
    """A profiled run; what `phalanx profile --json` printed."""
    place.write_job(JOB)
    done = place.run("profile", "job.yaml", "--epochs", "2-3", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_profile_names_the_groups_and_adds_up_to_the_clock(profiled: dict[str, Any]) -> None:
    times = {group["group"]: group["mean_s"] for group in profiled["groups"]}
    for group in (
        "all-reduce",
        "convolution",
        "dense",
        "input",
        "optimiser",
        "regulariser",
        "loss",
    ):
        assert times[group] > 0, group
    assert sum(times.values()) == pytest.approx(profiled["wall_s"], rel=1e-6)
    assert (profiled["workers"], profiled["epochs"]) == (2, [1, 2])
    assert profiled["beside"][0]["name"] == "gloo:all_reduce"


def test_two_profiles_are_compared_in_one_direction(place: Place, profiled: dict[str, Any]) -> None:
    strategy = "strategy={name: parameter_server, consistency: bsp}"
    done = place.run(
        "profile", "job.yaml", "--epochs", "2", "--set", strategy, "--set", "name=served",
        "--against", profiled["run"], "--operators", "0", "-o", "ratios.csv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"A  {profiled['run']}" in done.stdout
    assert "B ÷ A: above 1, B takes longer" in done.stdout
    lines = (place.folder / "ratios.csv").read_text().splitlines()
    rows = {line.split(",")[0]: line.split(",") for line in lines[1:]}
    # Without all-reduce in B and without servers in A, the words must say so.
    assert rows["all-reduce"][-1] == "only A"
    assert rows["parameter servers"][-1] == "only B"
    assert float(rows["total"][3]) == pytest.approx(
        float(rows["total"][2]) / float(rows["total"][1]), abs=2e-3
    )


def test_a_run_becomes_a_timeline(place: Place, profiled: dict[str, Any]) -> None:
    done = place.run("trace", profiled["run"], "-o", "trace.json.gz", "--json")
    assert done.returncode == 0, done.stderr
    trace = json.loads(gzip.decompress((place.folder / "trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    assert json.loads(done.stdout)["events"] == len(events)
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert {"controller", "worker-0", "worker-1"} <= names.keys()
    for worker in ("worker-0", "worker-1"):
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == names[worker]]
        steps = [e for e in spans if e["name"].startswith("step ")]
        assert len(steps) == 3 * 11
        assert {"start-up", "input", "forward", "backward", "exchange", "apply"} <= {
            e["name"] for e in spans
        }
    # Both workers end a step together; on one clock their ends are close, whatever the load.
    ends = [
        {e["name"]: e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["pid"] == pid}
        for pid in (names["worker-0"], names["worker-1"])
    ]
    longest = max(e["dur"] for e in events if e["ph"] == "X" and e["name"].startswith("step "))
    assert all(abs(ends[0][f"step {n}"] - ends[1][f"step {n}"]) <= longest for n in range(1, 34))


def test_runs_go_to_tensorboard_and_mlflow(place: Place, profiled: dict[str, Any]) -> None:
    done = place.run("export", "tensorboard", profiled["run"], "--to", "logs")
    assert done.returncode == 0, done.stderr
    assert len(list((place.folder / "logs" / profiled["run"]).iterdir())) == 1
    first, second = (place.run("export", "mlflow", profiled["run"], "--json") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    (new,), (again,) = json.loads(first.stdout), json.loads(second.stdout)
    assert (new["what"], again["what"]) == ("new", "unchanged")
    assert new["mlflow_run_id"] == again["mlflow_run_id"]
    # Six figures for each of three epochs at least; the database is here and nowhere else.
    assert new["metrics"] >= 18
    assert (place.folder / "mlruns.db").is_file()


def test_the_slow_worker_is_blamed_for_its_slow_phase(place: Place) -> None:
    (place.folder / "slow.py").write_text(SLOW_MODEL)
    job = JOB | {"name": "slow", "model": "slow:build", "optimizer": "sgd"}
    # Unchecked: the check would be the first to build the network, and both workers slow.
    summary = place.summary(place.write_job(job, "slow.yaml"), "--force")
    found = json.loads(place.run("blame", summary["run_dir"], "--json").stdout)
    worst = found["ranks"][0]
    assert max(worst["phases"], key=worst["phases"].get) == "forward"
    # 33 steps, each 30 ms late; a busy machine may hide much of it behind other delays.
    assert worst["phases"]["forward"] > 0.25 * 33 * 0.03
    assert found["blamed_s"] <= found["waiting_s"]
    text = place.run("blame", summary["run_dir"]).stdout
    assert f"worker-{worst['rank']} accounts for" in text
    assert "mostly in forward" in text
