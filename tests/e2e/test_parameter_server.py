"""Runs with parameter servers as a user starts them: every consistency, resuming, growing."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from phalanx.records.events import Checkpoint, Epoch, Evaluation, Finished, Served, Started, Step
from phalanx.records.log import read_logs
from phalanx.records.position import newest_position
from phalanx.records.rundir import RunDir
from phalanx.records.usage import process_uses
from support.phases import worker_phases
from support.runs import LIMIT_S, Place, events_of, is_running
from support.waiting import wait_until

NUM_TRAIN, NUM_STEPS, EPOCHS = 1294, 21, 5
JOB: dict[str, Any] = {
    "name": "served",
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "schedule": {"name": "milestones", "at": [0.8], "factor": 0.1},
    "epochs": EPOCHS,
    "workers": 2,
}
# A server gets at least a kilobyte, so that two of them share even this model.
STRATEGIES: dict[str, dict[str, Any]] = {
    "async": {"consistency": "async", "dispatch": "dynamic", "servers": 2},
    "bsp": {"consistency": "bsp"},
    "ssp": {"consistency": "ssp", "staleness": 2, "overlap": True},
    "dssp": {"consistency": "dssp", "staleness_range": [1, 4], "compression": "bf16"},
    "k_sync": {"consistency": "k_sync", "k": 1, "dispatch": "dynamic"},
    "k_async": {"consistency": "k_async", "k": 2, "compression": "int8", "encrypt": "always"},
    "colocated": {"consistency": "bsp", "servers": "colocated"},
    "two-servers": {"consistency": "bsp", "servers": 2},
}


def job_with(strategy: object, **fields: Any) -> dict[str, Any]:
    return JOB | {"strategy": strategy} | fields


def served_by(**settings: Any) -> dict[str, Any]:
    return {"name": "parameter_server", "min_shard_bytes": 1024, **settings}


class Runs:
    """The runs that several tests look at; each is made when it is first asked for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._found: dict[str, dict[str, Any]] = {}

    def summary(self, name: str) -> dict[str, Any]:
        if name not in self._found:
            settings = STRATEGIES.get(name)
            strategy = served_by(**settings) if settings is not None else name
            self.place.write_job(job_with(strategy), f"{name}.yaml")
            self._found[name] = self.place.summary(f"{name}.yaml", "--set", f"name={name}")
        return self._found[name]

    def run(self, name: str) -> RunDir:
        return RunDir.open(Path(self.summary(name)["run_dir"]))

    def copy(self, name: str) -> str:
        """A run elsewhere, so that several tests may resume it."""
        target = self.place.folder / f"{name}-copy" / "run"
        return str(shutil.copytree(self.run(name).path, target))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Runs:
    return Runs(Place(tmp_path_factory.mktemp("served"), cache))


def steps_of(run: RunDir, num_workers: int = 2) -> list[Step]:
    logs = (events_of(run, f"worker-{rank}") for rank in range(num_workers))
    return [event for log in logs for event in log if isinstance(event, Step)]


def test_waiting_for_a_slow_worker_is_no_communication(runs: Runs) -> None:
    job = job_with(served_by(consistency="bsp"), inject=[{"rank": 1, "slow": 6}])
    runs.place.write_job(job | {"epochs": 2}, "slow.yaml")
    summary = runs.place.summary("slow.yaml", "--set", "name=slow")
    logs = read_logs(Path(summary["run_dir"]) / "events")
    phases = worker_phases(logs)
    fast, slow = phases["worker-0"], phases["worker-1"]
    late_s = slow.forward_s + slow.backward_s - fast.forward_s - fast.backward_s
    assert late_s > 0
    # The fast one stood still for about as long as the slow one computed longer.
    assert fast.wait_s > 0.6 * late_s
    assert slow.wait_s < fast.wait_s / 2
    assert fast.communication_s < fast.wait_s
    for name in ("communication_s", "wait_s", "overlapped_s"):
        mean = sum(getattr(one, name) for one in phases.values()) / 2
        assert mean == pytest.approx(summary[name], abs=1e-6)
    used = process_uses(logs)
    assert set(used) == {"controller", "server-0", "worker-0", "worker-1", "evaluator-0"}
    assert sum(one.cpu_s for one in used.values()) == pytest.approx(summary["cpu_s"])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_consistency_learns_and_its_records_fit_together(runs: Runs, name: str) -> None:
    summary, run, strategy = runs.summary(name), runs.run(name), STRATEGIES[name]
    assert summary["test_accuracy"] >= 0.85
    assert summary["state"] == "finished"
    assert (summary["epochs"], summary["samples"]) == (EPOCHS, EPOCHS * NUM_TRAIN)
    assert 0 <= summary["train_accuracy"] <= 1

    # Every part of every batch was used once, and the samples of each epoch are all there.
    steps = steps_of(run)
    assert Counter(step.step for step in steps) == Counter(range(1, EPOCHS * NUM_STEPS * 2 + 1))
    for epoch in range(EPOCHS):
        assert sum(step.num_samples for step in steps if step.epoch == epoch) == NUM_TRAIN

    serving = summary["serving"]
    servers = {"async": 2, "colocated": 2, "two-servers": 2}.get(name, 1)
    histogram = {int(value): count for value, count in serving["staleness_histogram"].items()}
    assert (serving["servers"], serving["consistency"]) == (servers, strategy["consistency"])
    assert serving["pushes"] == serving["pushes_applied"] + serving["pushes_dropped"]
    assert sum(histogram.values()) == servers * serving["pushes_applied"]
    assert serving["staleness_max"] == max(histogram)
    assert serving["staleness_mean"] == pytest.approx(
        sum(value * count for value, count in histogram.items()) / sum(histogram.values())
    )
    assert 0 < serving["server_busy_share"] <= 1
    assert (serving["updates_lost"], serving["processes_replaced"]) == (0, 0)
    if strategy["consistency"] == "bsp":
        assert summary["updates"] == EPOCHS * NUM_STEPS
        assert serving["pushes"] == len(steps)
        assert histogram == {0: servers * len(steps)}
    elif name == "k_async":
        # Two gradients an update; at the end of an epoch what is left is applied, too.
        assert serving["pushes_dropped"] == 0
        assert EPOCHS * NUM_STEPS <= summary["updates"] <= EPOCHS * (NUM_STEPS + 1)
    elif name == "ssp":
        # With two workers, at most 2 s + 1 pushes of the other come between pull and push;
        # overlap adds one step of each.
        assert serving["staleness_max"] <= 2 * strategy["staleness"] + 3


def test_every_process_left_a_complete_log(runs: Runs) -> None:
    run = runs.run("async")
    names = ["controller", "worker-0", "worker-1", "server-0", "server-1", "evaluator-0"]
    logs = {name: events_of(run, name) for name in names}
    for name in names:
        assert isinstance(logs[name][-1], Finished), name
        assert list((run.path / "logs").glob(f"{name}.log")) or name == "controller"
    control = logs["controller"]
    assert [event.epoch for event in control if isinstance(event, Epoch)] == list(range(EPOCHS))
    assert [event.samples for event in control if isinstance(event, Checkpoint)] == [
        NUM_TRAIN * epoch for epoch in range(1, EPOCHS + 1)
    ]
    parts = [event.part for event in control if isinstance(event, Evaluation)]
    assert parts == ["validation"] * EPOCHS + ["test"]
    for server in ("server-0", "server-1"):
        [*_, last] = [event.facts for event in logs[server] if isinstance(event, Served)]
        assert last.samples == EPOCHS * NUM_TRAIN
        assert last.refused == 0
        assert {"worker-0", "worker-1"} <= last.received_bytes.keys()


def test_bsp_is_allreduce_with_the_work_elsewhere(runs: Runs) -> None:
    together, served = runs.summary("allreduce"), runs.summary("bsp")
    for key in ("train_loss", "val_loss", "test_loss"):
        assert served[key] == pytest.approx(together[key], abs=1e-5), key
    for key in ("train_accuracy", "val_accuracy", "test_accuracy", "updates", "samples"):
        assert served[key] == together[key], key
    lr = [sorted({step.lr for step in steps_of(runs.run(name))}) for name in ("allreduce", "bsp")]
    assert lr[0] == lr[1] == pytest.approx([0.005, 0.05])


def test_bsp_gives_the_same_bits_wherever_the_servers_are(runs: Runs) -> None:
    """Each parameter is moved by the same sum, in the order of workers, on whichever server.

    With another number of servers the slices end elsewhere, and the last few elements of a slice
    are computed without vector instructions, which round otherwise in the last bit.
    """
    colocated, apart, alone = map(runs.summary, ("colocated", "two-servers", "bsp"))
    for key in ("parameters_sha256", "train_loss", "test_loss"):
        assert colocated[key] == apart[key], key
    for key in ("train_loss", "test_loss"):
        assert alone[key] == pytest.approx(apart[key], abs=1e-6), key


def test_a_checkpoint_passes_from_servers_to_allreduce_and_back(runs: Runs) -> None:
    """Momentum, position and schedule pass as well: both ways lead to the same end."""
    more = ["--epochs", str(EPOCHS + 2)]
    onwards = runs.place.summary("--resume", runs.copy("bsp"), *more, "--set", "strategy=allreduce")
    back = runs.place.summary(
        "--resume", runs.copy("allreduce"), *more,
        "--set", "strategy={name: parameter_server, consistency: bsp, servers: 1}",
    )  # fmt: skip
    assert (onwards["strategy"], back["strategy"]) == ("allreduce", "parameter_server")
    for summary in (onwards, back):
        assert (summary["epochs"], summary["attempts"]) == (EPOCHS + 2, 2)
        assert summary["samples"] == (EPOCHS + 2) * NUM_TRAIN
        assert summary["updates"] == (EPOCHS + 2) * NUM_STEPS
    assert onwards["train_loss"] == pytest.approx(back["train_loss"], abs=1e-5)
    assert onwards["test_loss"] == pytest.approx(back["test_loss"], abs=1e-5)
    assert onwards["train_loss"] < runs.summary("allreduce")["train_loss"]


def test_a_run_grows_loses_its_controller_and_goes_on(place: Place) -> None:
    strategy = served_by(consistency="async", dispatch="dynamic", servers=2)
    place.write_job(
        job_with(strategy, name="growing", epochs=100_000, schedule="constant")
        | {"checkpoint": {"every_steps": 7, "best": None}}
    )
    with place.start("job.yaml", "--quiet") as training:
        run = training.run
        pids = training.worker_pids()
        grown = place.run("scale", "growing", "--workers", "3")
        assert grown.returncode == 0, grown.stderr
        wait_until(
            lambda: any(isinstance(event, Step) for event in events_of(run, "worker-2")),
            "the third worker to work",
            limit_s=LIMIT_S,
        )
        joined = [event for event in events_of(run, "worker-2") if isinstance(event, Started)]
        known = max(run.checkpoints.glob("samples-*.safetensors"), default=None)
        wait_until(
            lambda: max(run.checkpoints.glob("samples-*.safetensors"), default=None) != known,
            "a checkpoint with three workers",
            limit_s=LIMIT_S,
        )
        training.process.send_signal(signal.SIGKILL)
        training.end()
        pids.append(joined[-1].pid)
        wait_until(lambda: not any(map(is_running, pids)), "the workers to die", limit_s=LIMIT_S)
    assert run.read_status().state == "lost"

    # The next attempt begins at the newest checkpoint, wherever in an epoch that is.
    position = newest_position(run.checkpoints)
    assert position is not None
    epochs = position.epoch + 3
    summary = place.summary("--resume", "growing", "--epochs", str(epochs))
    assert summary["samples"] == epochs * NUM_TRAIN
    assert (summary["attempts"], summary["workers"]) == (2, 2)
    assert summary["test_accuracy"] >= 0.85
    starts = {name: events_of(run, name) for name in ("worker-0", "worker-1")}
    again = Counter[int]()
    for log in starts.values():
        last = max(index for index, event in enumerate(log) if isinstance(event, Started))
        again.update(event.step for event in log[last:] if isinstance(event, Step))
    first = 1 + position.epoch * NUM_STEPS * 2 + position.epoch_samples // 64 * 2
    assert again == Counter(range(first, 1 + epochs * NUM_STEPS * 2))
