"""Define the short runs that calibrate a job on this machine; `calibration` runs them. Pure.

One worker with two batch sizes separates fixed from proportional time; several workers with two
sizes show the cost of sharing cores and of communication; one run covers a parameter server. Each
takes seconds: a first run determines the number of steps. A user's script is left within its loop,
and computes a part of each batch where a job would have a smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping

# Too few to count as a measurement later, enough to estimate the step time.
FIRST_STEPS = 7
_TRIAL_S = 8.0
_LEAST_STEPS, _MOST_STEPS = 10, 60
_SMALL_PART = 0.25


def trial_steps(step_s: float) -> int:
    """Return the number of steps of a trial, given the time of one."""
    return max(_LEAST_STEPS, min(_MOST_STEPS, round(_TRIAL_S / step_s)))


def first_trial(job: JobSpec, num_samples: int) -> JobSpec:
    """Return the first trial: one worker, few steps."""
    return _short(job, num_samples, batch=job.global_batch, steps=FIRST_STEPS, workers=1)


def trial_jobs(job: JobSpec, num_samples: int, *, workers: int, steps: int) -> list[JobSpec]:
    """Return the trials after the first; with one worker there is no communication to measure."""
    short = partial(_short, job, num_samples, steps=steps)
    batch = job.global_batch
    small = max(1, batch // 4)
    jobs = [short(batch=batch, workers=1), short(batch=small, workers=1)]
    if workers < 2:
        return jobs
    if job.strategy.splits_model:
        # Its start measures the cost of each part of the network.
        split = {"name": "split"}
        jobs.append(short(batch=batch, steps=FIRST_STEPS, workers=2, strategy=split))
    server = {"name": "parameter_server", "dispatch": "dynamic"}
    return [
        *jobs,
        short(batch=max(workers, batch), workers=workers),
        short(batch=max(workers, small), workers=workers),
        short(batch=max(workers, batch), workers=workers, strategy=server),
    ]


def first_script_trial(job: JobSpec) -> JobSpec:
    """Return the first trial of a user's script: one worker, few steps."""
    return _short_script(job, steps=FIRST_STEPS, workers=1)


def script_trials(job: JobSpec, *, workers: int, steps: int) -> list[JobSpec]:
    """Return the trials of a user's script after the first."""
    return [
        _short_script(job, steps=steps, workers=count, part=part)
        for count in ((1, workers) if workers > 1 else (1,))
        for part in (1.0, _SMALL_PART)
    ]


def _short_script(job: JobSpec, *, steps: int, workers: int, part: float = 1.0) -> JobSpec:
    """Return the same script, left after a few steps."""
    assert job.program is not None
    mapping = _plain(job, workers, None)
    trial = {"steps": steps, "part": part}
    mapping["program"] = {**to_mapping(job.program), "shares": None, "trial": trial}
    return job_from_mapping(mapping)


def _short(
    job: JobSpec,
    num_samples: int,
    *,
    batch: int,
    steps: int,
    workers: int,
    strategy: Mapping[str, object] | None = None,
) -> JobSpec:
    """Return the same job with few steps, and nothing but steps."""
    mapping = _plain(job, workers, strategy)
    data = dict(_part(mapping, "data"))
    wanted = batch * steps
    data |= {"validation": 0.0, "limit": min(num_samples, wanted), "shard": "auto"}
    data.pop("distribution", None)
    optimizer = {k: v for k, v in _part(mapping, "optimizer").items() if k != "clip_norm"}
    mapping |= {
        "data": data,
        "optimizer": optimizer,
        "schedule": "constant",
        "batch": {"global": batch},
        "epochs": max(1, -(-wanted // num_samples)),
        "evaluate": "never",
    }
    return job_from_mapping(mapping)


def _plain(job: JobSpec, workers: int, strategy: Mapping[str, object] | None) -> dict[str, object]:
    """Return the settings of a job without what costs time besides steps."""
    mapping: dict[str, object] = dict(to_mapping(job))
    for key in ("early_stop", "profile", "inject", "infer"):
        mapping.pop(key, None)
    return mapping | {
        "name": "calibration",
        "checkpoint": {"every_epochs": None, "best": None},
        "workers": workers,
        "strategy": strategy or {"name": "allreduce" if workers > 1 else "single"},
    }


def _part(mapping: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = mapping[key]
    assert isinstance(part, dict)
    return part
