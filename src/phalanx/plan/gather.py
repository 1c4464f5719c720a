"""Build the cluster model from job, data sizes, calibration and machines. Pure.

Called by `calibration`, which opens the data and reads runs and pools; `search` uses the result.
"""

from __future__ import annotations

import msgspec

from phalanx.plan.calibrate import Calibration
from phalanx.plan.facts import ClusterModel, JobFacts, ModelFacts, NetworkFacts
from phalanx.plan.machines import (
    Reference,
    find_reference,
    local_machine,
    pool_links,
    pool_machines,
)
from phalanx.pool.inventory import Inventory
from phalanx.spec.job import JobSpec

_CONVOLUTIONAL = ("cnn", "mnist-cnn", "resnet", "densenet")


class DataSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Number of samples per partition of the data."""

    train: int
    validation: int
    test: int


class ThisMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that runs the command."""

    host: str
    cores: int
    memory_bytes: int


def job_facts(job: JobSpec, sizes: DataSizes) -> JobFacts:
    """Return the amount of work of a job."""
    looks = {"epoch": job.epochs, "end": 1, "never": 0}[job.evaluate]
    evaluated = looks * sizes.validation + (sizes.test if job.evaluate != "never" else 0)
    return JobFacts(
        global_batch=job.batch.per_worker or job.global_batch,
        samples_per_epoch=sizes.train,
        epochs=job.epochs,
        evaluated_samples=evaluated,
        per_worker=job.batch.per_worker is not None,
    )


def is_enough(calibration: Calibration, here: ThisMachine) -> bool:
    """Return whether runs here covered one worker and, given enough cores, several."""
    counts = {fit.workers for fit in calibration.fits.get(here.host, ())}
    return 1 in counts and (here.cores < 2 or len(counts) > 1)


def local_cluster(
    job: JobSpec, sizes: DataSizes, calibration: Calibration, here: ThisMachine
) -> ClusterModel:
    """Model this machine alone, with one to as many workers as it has cores."""
    machine = local_machine(
        here.host, cores=here.cores, memory_bytes=here.memory_bytes, calibration=calibration
    )
    watts = {"watts_idle": job.observe.watts_idle, "watts_full": job.observe.watts_full}
    return ClusterModel(
        machines={here.host: msgspec.structs.replace(machine, **watts)},
        model=_model(job, calibration),
        job=job_facts(job, sizes),
        network=NetworkFacts(within=calibration.within),
        costs=calibration.costs,
        sources=(_runs(calibration),),
    )


def pool_cluster(
    job: JobSpec,
    sizes: DataSizes,
    calibration: Calibration,
    inventory: Inventory,
    own: Reference | None,
) -> ClusterModel:
    """Model the machines of a pool; `own` is the machine of the runs, if it is not among them.

    Raises:
        PlanError: The speed of none of them is known.
    """
    reference = find_reference(inventory, calibration) or own
    machines, unknown = pool_machines(
        inventory,
        calibration,
        reference=reference,
        convolutions=job.model.name in _CONVOLUTIONAL,
    )
    measured = list(calibration.fits.values())
    scaled = [name for name, one in machines.items() if one.fits not in measured]
    sources = [_runs(calibration)]
    if scaled and reference is not None:
        sources.append(f"probed speed against {reference.host} for {', '.join(scaled[:6])}")
    sources += [f"{name} left out: {reason}" for name, reason in unknown.items()]
    return ClusterModel(
        machines=machines,
        model=_model(job, calibration),
        job=job_facts(job, sizes),
        network=NetworkFacts(within=calibration.within, pairs=pool_links(inventory)),
        costs=calibration.costs,
        sources=tuple(sources),
    )


def _model(job: JobSpec, calibration: Calibration) -> ModelFacts:
    return msgspec.structs.replace(calibration.model, num_moments=len(job.optimizer.slots))


def _runs(calibration: Calibration) -> str:
    count = len(calibration.runs)
    return f"{count} earlier run{'' if count == 1 else 's'} of the same model and data"
