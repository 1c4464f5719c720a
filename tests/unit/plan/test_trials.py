"""The short runs that calibrate: few, short, and of the same computation."""

from __future__ import annotations

from phalanx.plan.calibrate import is_alike
from phalanx.plan.trials import (
    first_script_trial,
    first_trial,
    script_trials,
    trial_jobs,
    trial_steps,
)
from phalanx.spec.loader import job_from_mapping
from support.worlds import job


def test_they_compute_what_the_job_computes() -> None:
    wanted = job(
        model={"name": "resnet", "n": 1},
        optimizer={"name": "sgd", "momentum": 0.9, "clip_norm": 1.0},
        schedule={"name": "milestones", "at": [0.5]},
        early_stop={},
        workers=3,
        inject=[{"rank": 0}],
    )
    jobs = [first_trial(wanted, 1000), *trial_jobs(wanted, 1000, workers=2, steps=20)]
    assert len(jobs) == 6
    for one in jobs:
        assert is_alike(one, wanted)
        assert one.inject == ()
        assert one.evaluate == "never"
        # So many steps, whether the data set is long enough or has to be repeated.
        limit = one.data.limit
        assert limit is not None
        assert one.epochs * limit >= one.global_batch * 7
    assert {one.strategy.name for one in jobs} == {"single", "allreduce", "parameter_server"}
    assert len({one.global_batch for one in jobs if one.workers == 1}) == 2
    assert len({one.global_batch for one in jobs if one.workers == 2}) == 2


def test_one_core_has_nothing_to_exchange() -> None:
    assert {one.workers for one in trial_jobs(job(), 1000, workers=1, steps=20)} == {1}


def test_slow_steps_are_fewer() -> None:
    assert trial_steps(0.001) > trial_steps(0.4) > trial_steps(10.0) > 6


def test_a_script_is_left_within_its_loop() -> None:
    wanted = job_from_mapping(
        {
            "program": {"script": "train.py", "args": ["--lr", "1"], "shares": [2, 1]},
            "strategy": "local_sgd",
        }
    )
    jobs = [first_script_trial(wanted), *script_trials(wanted, workers=2, steps=20)]
    for one in jobs:
        assert is_alike(one, wanted)
        assert one.program is not None
        assert one.program.shares is None
        assert one.checkpoint.every_epochs is None
    trials = [(one.workers, one.program and one.program.trial) for one in jobs]
    seen = [(workers, trial.steps, trial.part) for workers, trial in trials if trial is not None]
    assert seen == [(1, 7, 1.0), (1, 20, 1.0), (1, 20, 0.25), (2, 20, 1.0), (2, 20, 0.25)]
    assert {one.workers for one in script_trials(wanted, workers=1, steps=20)} == {1}
