"""`backend: ddp` as a user starts it: what befalls it, what it records, how it is taken up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from phalanx.records.events import Failure, Step
from phalanx.records.profile import read_profile
from phalanx.records.rundir import RunDir
from support.runs import ENDLESS, LIMIT_S, Place, events_of, is_running
from support.waiting import wait_until

# The product's promise, from the fault to its being noticed.
NOTICED_S = 10.0
NUM_TRAIN = 1294
SMALL: dict[str, Any] = {
    "name": "plain",
    "backend": "ddp",
    "model": {"name": "resnet", "n": 1},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "adam", "lr": 0.003},
    "workers": 2,
    "epochs": 5,
    "checkpoint": {"every_steps": 7},
}


def test_a_killed_worker_is_named_within_ten_seconds(place: Place) -> None:
    place.write_job(ENDLESS | {"backend": "ddp"})
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        struck = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        code, errors = training.end()
        assert code == 4
        sentence = "worker-1 was killed by SIGKILL"
        assert errors.strip().splitlines()[-1].startswith(f"phalanx: {sentence}")
        found = [e for e in events_of(training.run, "controller") if isinstance(e, Failure)]
    assert found[0].cause.startswith(sentence)
    assert 0 < found[0].mono_s - struck < NOTICED_S
    assert not any(map(is_running, pids))


def test_it_is_recorded_like_any_run_and_goes_on_after_a_kill(place: Place) -> None:
    place.write_job(SMALL | {"profile": {"epochs": "2"}})
    whole = place.summary("job.yaml")
    assert whole["updates"] == SMALL["epochs"] * -(-NUM_TRAIN // 64)
    assert whole["test_accuracy"] > 0.8
    run = RunDir(Path(whole["run_dir"]))
    for rank in range(2):
        steps = [e for e in events_of(run, f"worker-{rank}") if isinstance(e, Step)]
        assert sum(step.num_samples for step in steps) * 2 == SMALL["epochs"] * NUM_TRAIN
        assert all(step.backward_s > 0 and step.exchange_s >= 0 for step in steps)
        assert any(step.exchange_s + step.overlapped_s > 0 for step in steps)
        profile = read_profile(run, f"worker-{rank}")
        assert profile is not None
        assert [epoch.epoch for epoch in profile.epochs] == [1]
        assert any("conv" in name for name in map(str, profile.epochs[0].operators))

    again = Place(place.folder, place.cache)
    again.runs = place.folder / "again"
    again.write_job(SMALL)
    with again.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        training.wait_for_checkpoint()
        training.process.kill()
        training.end()
        wait_until(lambda: not any(map(is_running, pids)), "the workers to die", limit_s=LIMIT_S)
        interrupted = training.run
    resumed = again.summary("--resume", str(interrupted.path))
    for key in ("parameters_sha256", "train_loss", "val_loss", "test_loss", "samples", "updates"):
        assert resumed[key] == whole[key], key
