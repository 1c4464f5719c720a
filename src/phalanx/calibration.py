"""Gather the inputs of predictions: earlier runs, trial runs, this machine, a pool.

`plan` is pure; this part of planning reads the disk and starts runs. Called by the façade, which
passes the function that runs a trial.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil
from msgspec.structs import replace

from phalanx.cgroup import memory_limit
from phalanx.data.dataset import open_dataset
from phalanx.errors import Interrupted, PlanError, Terminated
from phalanx.launch.fork_server import warm_workers
from phalanx.plan.calibrate import calibrate as fit_runs
from phalanx.plan.calibrate import read_runs
from phalanx.plan.facts import ClusterModel
from phalanx.plan.machines import (
    DataSizes,
    Reference,
    ThisMachine,
    is_enough,
    local_cluster,
    pool_cluster,
    pool_cores,
    pool_links,
)
from phalanx.plan.measured import RunMeasures, measure_run
from phalanx.plan.split import read_parts
from phalanx.plan.trials import (
    first_script_trial,
    first_trial,
    script_trials,
    trial_jobs,
    trial_steps,
)
from phalanx.pool.inventory import Inventory
from phalanx.pool.probe import measure_this_machine
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec

TRIALS = "calibration"
"""Directory of trial runs, below that of all runs."""
RunTrial = Callable[[JobSpec], Summary]


def survey(
    job: JobSpec,
    sizes: DataSizes | None,
    *,
    pool: Inventory | None,
    calibrate: Literal["auto", "never", "fresh"],
    runs: Path,
    run_trial: RunTrial,
) -> ClusterModel:
    """Build the cluster model of a job.

    Args:
        job: The job to plan.
        sizes: Sizes of its data; None: its script knows them.
        pool: The machines; None: this one.
        calibrate: auto: trial runs here if earlier runs do not suffice; never: earlier runs only;
            fresh: trial runs only.
        runs: Parent of earlier runs.
        run_trial: Runs a trial, in `TRIALS` below `runs`.

    Raises:
        PlanError: The speed is unknown.
    """
    if job.backend != "native":
        raise PlanError(
            f"plans are made for the native backend, not for {job.backend}; leave 'backend' out"
        )
    here = _this_machine()
    known = read_runs([runs, runs / TRIALS], job) if calibrate != "fresh" else []
    if calibrate == "fresh" or (
        calibrate == "auto" and not (known and is_enough(fit_runs(known), here))
    ):
        if pool is not None:
            _require_probe(pool, here)
        known += _run_trials(job, sizes, here, run_trial)
    if not known:
        raise PlanError(
            f"no earlier run in {runs} shows how fast this job is; train it once, or let "
            "`phalanx plan` make short runs"
        )
    links = pool_links(pool) if pool is not None else None
    calibration = fit_runs(known, links, pool_cores(pool) if pool is not None else None)
    parts = read_parts([runs, runs / TRIALS], job) if job.program is None else None
    if pool is None:
        return replace(local_cluster(job, sizes, calibration, here), parts=parts)
    speed = measure_this_machine() if here.host in calibration.fits else None
    own = Reference(host=here.host, speed=speed) if speed is not None else None
    return replace(pool_cluster(job, sizes, calibration, pool, own), parts=parts)


def data_sizes(job: JobSpec, *, data_root: Path, cache_root: Path) -> DataSizes | None:
    """Count the samples of a job's data; None: only its script can."""
    if job.program is not None:
        return None
    data = open_dataset(job.data, data_root=data_root, cache_root=cache_root)
    return DataSizes(
        train=data.train.num_samples,
        validation=data.validation.num_samples,
        test=data.test.num_samples,
    )


def _run_trials(
    job: JobSpec, sizes: DataSizes | None, here: ThisMachine, run_trial: RunTrial
) -> list[RunMeasures]:
    """Measure a job by trial runs on this machine; the first sets the length of the others."""
    try:
        with warm_workers():
            first = first_script_trial(job) if sizes is None else first_trial(job, sizes.train)
            look = run_trial(first)
            steps = trial_steps(look.train_s / max(1, look.updates))
            workers = min(here.cores, 4)
            found = [run_trial(trial) for trial in _trials(job, sizes, workers, steps)]
    except (Interrupted, Terminated) as error:
        # A trial is not worth continuing: the next plan makes others.
        raise type(error)("interrupted in a short trial run; nothing was planned") from None
    measured = [measure_run(RunDir(Path(summary.run_dir))) for summary in found]
    return [one for one in measured if one is not None]


def _trials(job: JobSpec, sizes: DataSizes | None, workers: int, steps: int) -> list[JobSpec]:
    if sizes is None:
        return script_trials(job, workers=workers, steps=steps)
    return trial_jobs(job, sizes.train, workers=workers, steps=steps)


def _require_probe(pool: Inventory, here: ThisMachine) -> None:
    """Refuse before trials of a minute, whose speed no machine of the pool could be compared with.

    Raises:
        PlanError: No machine was probed, and this one is not among them.
    """
    if all(one.probe is None and one.title != here.host for one in pool.members):
        raise PlanError("no machine of the pool has a known speed; run `phalanx pool probe` first")


def _this_machine() -> ThisMachine:
    total = psutil.virtual_memory().total
    return ThisMachine(
        host=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=min(total, memory_limit() or total),
    )
