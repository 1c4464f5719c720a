"""Planning on this machine from nothing, and the simulator against real processes.

Times on a shared machine are worth little, so the simulator is held against a network that sleeps:
what its steps take is decided by the clock, not by whatever else the machine does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.plan.calibrate import calibrate, past_candidate
from phalanx.plan.facts import ClusterModel, JobFacts, MachineFacts, NetworkFacts
from phalanx.plan.measured import RunMeasures, measure_run
from phalanx.plan.placement import Candidate
from phalanx.plan.predict import Prediction, predict
from phalanx.records.rundir import RunDir
from phalanx.simulate.simulator import simulate
from support.runs import Place

SLEEPER = '''
import os, time
import numpy as np
from torch import nn

class Sleeper(nn.Module):
    """Takes 60 ms for a step, give or take 40 %."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.rng = np.random.default_rng(os.getpid())

    def forward(self, x):
        if self.training:
            time.sleep(float(self.rng.gamma(1 / 0.16, 0.06 * 0.16)))
        return self.layer(x.flatten(1))

def build():
    return Sleeper()
'''


def trained(place: Place, workers: int, strategy: dict[str, Any]) -> RunMeasures:
    job = {
        "model": "sleeper:build",
        "data": {"name": "digits", "validation": 0.0},
        "batch": {"per_worker": 16},
        "workers": workers,
        "epochs": workers,
        "evaluate": "never",
        "checkpoint": {"every_epochs": None, "best": None},
        "strategy": strategy,
    }
    summary = place.summary(place.write_job(job))
    found = measure_run(RunDir(Path(summary["run_dir"])))
    assert found is not None
    return found


def own_world(run: RunMeasures) -> ClusterModel:
    """Sleeping workers as the run itself shows them; sleeping needs no cores."""
    calibration = calibrate([run])
    (host, (fit,)) = next(iter(calibration.fits.items()))
    return ClusterModel(
        machines={
            host: MachineFacts(name=host, cores=64, memory_bytes=1 << 40, fits=(fit,), slots=2)
        },
        model=calibration.model,
        job=JobFacts(global_batch=32, samples_per_epoch=1000, epochs=1),
        network=NetworkFacts(within=calibration.within),
    )


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "allreduce"},
        {"name": "parameter_server", "dispatch": "dynamic"},
        {"name": "parameter_server", "consistency": "bsp"},
    ],
    ids=["allreduce", "async", "bsp"],
)
def test_simulator_and_prediction_against_real_runs(place: Place, strategy: dict[str, Any]) -> None:
    """From what workers compute follows how long they wait, and so the speed of the whole."""
    (place.folder / "sleeper.py").write_text(SLEEPER)
    run = trained(place, 2, strategy)
    where = own_world(run)
    assert where.machines[run.hosts[0]].fits[0].jitter == pytest.approx(0.4, rel=0.3)
    candidate = past_candidate(run)
    simulated = simulate(candidate, where, num_rounds=400)[0].samples_per_s
    assert simulated == pytest.approx(run.samples_per_s, rel=0.15)
    assert predicted(candidate, where) == pytest.approx(run.samples_per_s, rel=0.15)


def predicted(candidate: Candidate, where: ClusterModel) -> float:
    found = predict(candidate, where)
    assert isinstance(found, Prediction)
    return found.samples_per_s.value


@pytest.mark.full
@pytest.mark.timeout(400)
def test_plan_from_nothing_then_train_it(place: Place) -> None:
    job = place.write_job(
        {
            "model": {"name": "mlp", "hidden": [32]},
            "data": "digits",
            "batch": {"global": 32},
            "epochs": 2,
        }
    )
    done = place.run("plan", job, "-o", "plan.json", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan == json.loads((place.folder / "plan.json").read_text())
    assert plan["sentence"].startswith("Use ")
    assert plan["prediction"]["total_s"]["low"] < plan["prediction"]["total_s"]["high"]
    assert "measuring: single" in done.stderr
    # The short runs are no runs of the user's.
    assert "calibration" not in place.run("runs", "list").stdout
    trained = place.run("train", "--plan", "plan.json")
    assert trained.returncode == 0, trained.stderr
    assert "predicted" in trained.stdout
    assert "90 % interval" in trained.stdout
    (run,) = [path for path in place.runs.iterdir() if (path / "plan.json").exists()]
    assert json.loads((run / "plan.json").read_text()) == plan
    # Now there is a run to learn from, and nothing needs to be measured again.
    again = place.run("plan", job, "--json")
    assert "measuring" not in again.stderr
    assert json.loads(again.stdout)["sources"] != plan["sources"]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_plan_a_script_from_nothing_then_launch_it(place: Place) -> None:
    script = str(Path(__file__).parents[1] / "programs" / "cnn.py")
    out = place.folder / "out.pt"
    arguments = ("--epochs", "4", "--out", str(out))
    done = place.run("plan", script, *arguments, "--json", "-o", "plan.json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert "measuring: single, 1 worker, 25 % of its batch" in done.stderr
    # Trials leave the script in its loop.
    assert not out.exists()
    assert plan["job"]["program"]["trial"] is None
    assert "without what it does between epochs" in plan["sources"][0]
    launched = place.run("launch", "--plan", "plan.json", script)
    assert launched.returncode == 0, launched.stderr
    assert "epoch 3: accuracy" in launched.stdout
    assert "90 % interval" in launched.stdout
    assert out.exists()
    # A run to its end shows the rest, and nothing needs to be measured again.
    again = place.run("plan", script, *arguments, "--json")
    assert "measuring" not in again.stderr
    assert "without" not in json.loads(again.stdout)["sources"][0]
    # Other arguments may compute something else.
    other = place.run("plan", script, "--calibrate", "never", "--json")
    assert other.returncode == 2
    assert "no earlier run" in other.stderr
