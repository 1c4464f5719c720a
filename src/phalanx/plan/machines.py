"""Derive machine and link facts from a calibration and a probed pool. Pure.

A machine on which the job has run uses its measured speed. Another is scaled by the ratio of probed
speeds (convolutions for networks with them, else matrix products), with a larger error; this
carries over because both are limited by the same arithmetic. Reference: Yu et al. 2021 (Habitat)
scales by measured kernels in the same way.
"""

from __future__ import annotations

import msgspec

from phalanx.errors import PlanError
from phalanx.plan.calibrate import Calibration
from phalanx.plan.facts import (
    ClusterModel,
    ComputeFit,
    JobFacts,
    LinkFacts,
    MachineFacts,
    ModelFacts,
    NetworkFacts,
)
from phalanx.pool.facts import HostSpeed
from phalanx.pool.inventory import Inventory, Member
from phalanx.records.script_trained import ScriptTrained
from phalanx.spec.job import JobSpec

# Error of scaling by one kernel: a network is not one convolution.
_SCALED_ERROR = 0.15
_GUESSED_MEMORY_BYTES = 4 << 30


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on which the job has run, and its probed speed."""

    host: str
    speed: HostSpeed


def pool_machines(
    inventory: Inventory,
    calibration: Calibration,
    *,
    reference: Reference | None,
    convolutions: bool,
) -> tuple[dict[str, MachineFacts], dict[str, str]]:
    """Return the machines of a pool, and the reasons why others are excluded.

    Machines without known runs are scaled by their probed speed against `reference`.
    """
    machines: dict[str, MachineFacts] = {}
    refused: dict[str, str] = {}
    for member in inventory.members:
        fits = _member_fits(member, calibration, reference, convolutions=convolutions)
        if fits is None:
            refused[member.title] = "its speed is not known; `phalanx pool probe` measures it"
            continue
        spec = member.spec
        machines[member.title] = MachineFacts(
            name=member.title,
            cores=member.cores or 1,
            memory_bytes=member.memory_bytes or _GUESSED_MEMORY_BYTES,
            fits=fits,
            slots=spec.slots,
            price_per_hour=spec.price_per_hour,
            watts_idle=spec.watts_idle,
            watts_full=spec.watts_full,
        )
    if not machines:
        raise PlanError("no machine of the pool has a known speed; run `phalanx pool probe` first")
    return machines, refused


def pool_cores(inventory: Inventory) -> dict[str, float]:
    """Return the cores of machines where declared or probed."""
    return {one.title: one.cores for one in inventory.members if one.cores}


def pool_links(inventory: Inventory) -> dict[str, dict[str, LinkFacts]]:
    """Return the probed links; the slower of both directions, because rings use both."""
    pairs: dict[str, dict[str, LinkFacts]] = {}
    for start in inventory.members:
        for end in inventory.members:
            ways = [inventory.link(start, end), inventory.link(end, start)]
            known = [way for way in ways if way is not None]
            if start is end or not known:
                continue
            pairs.setdefault(start.title, {})[end.title] = LinkFacts(
                latency_s=max(way.round_trip_s for way in known) / 2,
                bandwidth_bytes_per_s=min(way.bytes_per_s for way in known),
            )
    return pairs


def find_reference(inventory: Inventory, calibration: Calibration) -> Reference | None:
    """Return a machine of the pool on which the job has run and whose speed was probed."""
    for member in inventory.members:
        if member.probe is None or member.probe.speed is None:
            continue
        for host in (member.probe.looks.host, member.title):
            if host in calibration.fits:
                return Reference(host=host, speed=member.probe.speed)
    return None


def _member_fits(
    member: Member,
    calibration: Calibration,
    reference: Reference | None,
    *,
    convolutions: bool,
) -> tuple[ComputeFit, ...] | None:
    probe = member.probe
    names = (member.title, *((probe.looks.host,) if probe else ()))
    own = [fits for name in names if (fits := calibration.fits.get(name))]
    if own:
        return own[0]
    if reference is None or probe is None or probe.speed is None:
        return None
    # A declaration may offer fewer cores than were measured.
    cores = member.cores or probe.looks.cores
    there = _gflops(probe.speed, convolutions) * min(1.0, cores / probe.looks.cores)
    factor = _gflops(reference.speed, convolutions) / there
    fits = calibration.fits[reference.host]
    whole = max(
        (fit for fit in fits if fit.workers == 1), key=lambda fit: fit.threads, default=None
    )
    fit = whole or fits[0]
    threads = max(1, int(cores))
    scaled = fit.scaled(factor, threads=threads, workers=1, error=fit.error + _SCALED_ERROR)
    found = [scaled]
    if probe.looks.has_bf16 and fit.precision == "fp32":
        gain = probe.speed.bf16_gemm_all_gflops / probe.speed.gemm_all_gflops
        if gain > 1:
            # Only matrix products gain; normalisation, activations and input do not.
            shorter = 1 / (0.5 + 0.5 * gain)
            found.append(scaled.scaled(shorter, precision="bf16", error=scaled.error + 0.1))
    return tuple(found)


def _gflops(speed: HostSpeed, convolutions: bool) -> float:
    return speed.conv_all_gflops if convolutions else speed.gemm_all_gflops


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
    evaluations = {"epoch": job.epochs, "end": 1, "never": 0}[job.evaluate]
    evaluated = evaluations * sizes.validation + (sizes.test if job.evaluate != "never" else 0)
    return JobFacts(
        global_batch=job.batch.per_worker or job.global_batch,
        samples_per_epoch=sizes.train,
        epochs=job.epochs,
        evaluated_samples=evaluated,
        per_worker=job.batch.per_worker is not None,
    )


def script_facts(script: ScriptTrained) -> JobFacts:
    """Return the amount of work of a user's script, as its runs have shown it."""
    return JobFacts(
        global_batch=script.global_batch,
        samples_per_epoch=script.num_samples,
        epochs=script.epochs,
        splits_evenly=script.own_streams,
        script_s=script.between_s,
        in_step_only=script.in_step_only,
    )


def _work(job: JobSpec, sizes: DataSizes | None, calibration: Calibration) -> JobFacts:
    if calibration.script is not None:
        return script_facts(calibration.script)
    assert sizes is not None
    return job_facts(job, sizes)


def is_enough(calibration: Calibration, here: ThisMachine) -> bool:
    """Return whether runs here covered one worker and, given enough cores, several."""
    counts = {fit.workers for fit in calibration.fits.get(here.host, ())}
    return 1 in counts and (here.cores < 2 or len(counts) > 1)


def local_cluster(
    job: JobSpec, sizes: DataSizes | None, calibration: Calibration, here: ThisMachine
) -> ClusterModel:
    """Model this machine alone, with one to as many workers as it has cores.

    `sizes` are None for a user's script: the calibration knows them.
    """
    # Fits of another machine are better than nothing where its name has changed.
    any_fits = next(iter(calibration.fits.values()))
    machine = MachineFacts(
        name=here.host,
        cores=here.cores,
        memory_bytes=here.memory_bytes,
        fits=calibration.fits.get(here.host) or any_fits,
        slots=here.cores,
        watts_idle=job.observe.watts_idle,
        watts_full=job.observe.watts_full,
    )
    return ClusterModel(
        machines={here.host: machine},
        model=_model(job, calibration),
        job=_work(job, sizes, calibration),
        network=NetworkFacts(within=calibration.within),
        costs=calibration.costs,
        sources=tuple(_runs(calibration)),
    )


def pool_cluster(
    job: JobSpec,
    sizes: DataSizes | None,
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
        convolutions=_has_convolutions(job, calibration),
    )
    measured = list(calibration.fits.values())
    scaled = [name for name, one in machines.items() if one.fits not in measured]
    sources = _runs(calibration)
    if scaled and reference is not None:
        sources.append(f"probed speed against {reference.host} for {', '.join(scaled[:6])}")
    sources += [f"{name} left out: {reason}" for name, reason in unknown.items()]
    return ClusterModel(
        machines=machines,
        model=_model(job, calibration),
        job=_work(job, sizes, calibration),
        network=NetworkFacts(within=calibration.within, pairs=pool_links(inventory)),
        costs=calibration.costs,
        sources=tuple(sources),
    )


def _model(job: JobSpec, calibration: Calibration) -> ModelFacts:
    if calibration.script is not None:
        return calibration.model
    return msgspec.structs.replace(calibration.model, num_moments=len(job.optimizer.slots))


def _has_convolutions(job: JobSpec, calibration: Calibration) -> bool:
    script = calibration.script
    return job.model.name in _CONVOLUTIONAL if script is None else script.has_convolutions


def _runs(calibration: Calibration) -> list[str]:
    count, script = len(calibration.runs), calibration.script
    runs = f"{count} earlier run{'' if count == 1 else 's'}"
    if script is None:
        return [f"{runs} of the same model and data"]
    if not script.between_s:
        # Trials end within the loop.
        return [f"{runs} of the script, without what it does between epochs and at its end"]
    return [f"{runs} of the script"]
