"""Fit constants to earlier runs: machine speed, communication cost, error of predictions.

Each term is fitted where it was measured: computation per machine, threads and precision; the link
within a machine from exposed communication; a server's work from its counters; memory from peaks.
The residual between predicted and measured speed becomes two factors per family, for communication
and for the rest, regularised towards 1 while runs are few; the remaining error becomes the interval
of later predictions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.consistency.shards import plan_shards
from phalanx.plan.compute_model import fit_compute, line
from phalanx.plan.facts import (
    LOOPBACK,
    ClusterModel,
    ComputeFit,
    Correction,
    JobFacts,
    LinkFacts,
    MachineFacts,
    ModelFacts,
    NetworkFacts,
    SystemCosts,
)
from phalanx.plan.measured import RunMeasures, StepGroup, measure_run
from phalanx.plan.placement import Candidate, Seat, equal_split
from phalanx.plan.predict import throughput_of
from phalanx.plan.result import Throughput
from phalanx.plan.synchronous import predict_allreduce
from phalanx.plan.workers import worker_models
from phalanx.records.rundir import list_runs
from phalanx.records.script_trained import ScriptTrained
from phalanx.spec.job import JobSpec
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.program import script_digest

# Number of newest runs to read: enough for small errors, few enough to be quick.
_MOST_RUNS = 40
# Weight of the prior error, in runs.
_PRIOR_RUNS = 1.0
_PRIOR_ERROR = 0.15
# Ridge regularisation of the two factors towards 1. Computation is measured where it is fitted;
# communication over a network follows from a probe and formulas, so runs get more weight there.
_PRIOR_REST, _PRIOR_EXCHANGE = 2.0, 0.3
_MOST_FACTOR = 4.0
_NO_MEMORY_LIMIT = 1 << 50

Floats = NDArray[np.float64]
Links = Mapping[str, Mapping[str, LinkFacts]]
"""Links by source and destination machine."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Constants fitted to runs of one model."""

    model: ModelFacts
    fits: dict[str, tuple[ComputeFit, ...]]
    """By host."""
    costs: SystemCosts
    within: LinkFacts
    runs: tuple[str, ...]
    script: ScriptTrained | None = None
    """The user's script, as the newest run to its end showed it, or else a trial."""


class _Past(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted constants for predicting past runs."""

    fits: dict[str, tuple[ComputeFit, ...]]
    model: ModelFacts
    costs: SystemCosts
    cores: Mapping[str, float]

    def cluster(self, run: RunMeasures, network: NetworkFacts) -> ClusterModel:
        """Return the cluster model of the machines that a run had."""
        machines = {
            host: MachineFacts(
                name=host,
                cores=self.cores.get(host, max(run.cores, run.threads)),
                memory_bytes=_NO_MEMORY_LIMIT,
                fits=self.fits[host],
                slots=workers,
            )
            for host, workers in Counter(run.hosts).items()
        }
        job = JobFacts(global_batch=run.job.global_batch, samples_per_epoch=1, epochs=1)
        return ClusterModel(
            machines=machines, model=self.model, job=job, costs=self.costs, network=network
        )


def read_runs(roots: Iterable[Path], job: JobSpec) -> list[RunMeasures]:
    """Return finished runs below some directories that trained the same model on the same data."""
    found: list[RunMeasures] = []
    digest = script_digest(Path(job.program.script)) if job.program is not None else None
    for root in roots:
        for run in reversed(list_runs(root)[-4 * _MOST_RUNS :]):
            measures = measure_run(run)
            if measures is None or not is_alike(measures.job, job):
                continue
            if measures.script is None or measures.script.digest == digest:
                found.append(measures)
            if len(found) >= _MOST_RUNS:
                return found
    return found


def is_alike(one: JobSpec, other: JobSpec) -> bool:
    """Return whether the steps of two jobs compute the same, except for the batch size."""
    if one.program is not None and other.program is not None:
        return (one.program.script, one.program.args) == (other.program.script, other.program.args)
    return (
        one.program is None
        and other.program is None
        and one.model == other.model
        and one.data.name == other.data.name
        and one.data.augment == other.data.augment
        and one.optimizer.name == other.optimizer.name
    )


def calibrate(
    runs: Sequence[RunMeasures],
    links: Links | None = None,
    cores: Mapping[str, float] | None = None,
) -> Calibration:
    """Fit all constants to at least one run.

    A run over unknown links contributes compute speeds, but no correction of predictions. Machines
    without known cores are assumed to have as many as the one that started the run.
    """
    if not runs:
        raise ValueError("calibration needs at least one run")
    fits = _fits(runs)
    model = _model(runs)
    costs = SystemCosts(
        startup_s=sum(run.startup_s for run in runs) / len(runs),
        warm_up_s=sum(run.warm_up_s for run in runs) / len(runs),
        update_s_per_byte=_update_s_per_byte(runs, model),
    )
    past = _Past(fits=fits, model=model, costs=costs, cores=cores or {})
    within = _within(runs, past)
    corrections = _corrections(runs, past, NetworkFacts(within=within, pairs=links or {}))
    return Calibration(
        model=model,
        fits=fits,
        costs=msgspec.structs.replace(costs, corrections=corrections),
        within=within,
        runs=tuple(run.name for run in runs),
        script=_script(runs),
    )


def _script(runs: Sequence[RunMeasures]) -> ScriptTrained | None:
    """Return what is known of a script; only a run to its end shows what it does between epochs."""
    whole = [run for run in runs if run.job.program is not None and run.job.program.trial is None]
    return (whole or runs)[0].script


def _fits(runs: Sequence[RunMeasures]) -> dict[str, tuple[ComputeFit, ...]]:
    groups = _by_setting(run for run in runs if not run.job.strategy.updates_on_servers)
    # Runs with servers only fill gaps: servers slow workers down, which the model adds itself.
    served = _by_setting(run for run in runs if run.job.strategy.updates_on_servers)
    for setting, own in served.items():
        groups.setdefault(setting, own)
    found: dict[str, list[ComputeFit]] = {}
    for (host, *_), own in sorted(groups.items()):
        found.setdefault(host, []).append(fit_compute(own))
    return {host: tuple(own) for host, own in found.items()}


def _by_setting(
    runs: Iterable[RunMeasures],
) -> dict[tuple[str, int, int, str], list[StepGroup]]:
    found: dict[tuple[str, int, int, str], list[StepGroup]] = {}
    for run in runs:
        for group in run.groups:
            key = (group.host, group.threads, group.workers, group.precision)
            found.setdefault(key, []).append(group)
    return found


def _model(runs: Sequence[RunMeasures]) -> ModelFacts:
    num_parameters, moments = runs[0].num_parameters, runs[0].num_moments
    # Without those that are not trained, which is unknown where the numbers differ.
    recorded = (run.shapes for run in runs)
    shapes = next((one for one in recorded if sum(map(math.prod, one)) == num_parameters), ())
    model = ModelFacts(num_parameters=num_parameters, num_moments=moments, shapes=shapes)
    held = (3 + moments) * model.size_bytes
    peaks = [(batch, peak - held) for run in runs for batch, peak in run.peak_bytes]
    peaks = [(batch, peak) for batch, peak in peaks if peak > 0]
    if not peaks:
        return model
    sizes, values = zip(*peaks, strict=True)
    if len(set(sizes)) == 1:
        return msgspec.structs.replace(model, process_bytes=max(values))
    fixed, slope = line(sizes, values, [1.0] * len(sizes))
    return msgspec.structs.replace(model, process_bytes=int(fixed), sample_bytes=int(slope))


def _update_s_per_byte(runs: Sequence[RunMeasures], model: ModelFacts) -> float:
    """Return a server's time per byte, without the cost per message."""
    found = []
    for run in runs:
        strategy = run.job.strategy
        if run.server_push_s is None or not strategy.updates_on_servers:
            continue
        assert isinstance(strategy, ParameterServerSpec)
        layout = plan_shards(
            model.num_parameters,
            num_servers=strategy.num_servers(run.job.workers),
            min_shard_bytes=strategy.min_shard_bytes,
            max_shards=strategy.max_shards,
        )
        messages_s = len(layout.segments) / layout.num_servers * SystemCosts().message_s
        size = model.size_bytes / layout.num_servers
        found.append(max(0.0, run.server_push_s - messages_s) / size)
    return sum(found) / len(found) if found else SystemCosts().update_s_per_byte


def _within(runs: Sequence[RunMeasures], past: _Past) -> LinkFacts:
    """Fit the link within a machine to the measured exposed communication."""
    alone = [
        run
        for run in runs
        if run.job.strategy.name == "allreduce" and len(run.hosts) > 1 and len(set(run.hosts)) == 1
    ]
    if not alone:
        return LOOPBACK
    found = []
    for run in alone:
        strategy = run.job.strategy
        assert isinstance(strategy, AllreduceSpec)
        # Bisection on a logarithmic scale: exposed time decreases monotonically with bandwidth.
        low, high = math.log(1e6), math.log(2e10)
        for _ in range(40):
            middle = (low + high) / 2
            network = NetworkFacts(within=_loopback(math.exp(middle)))
            cluster = past.cluster(run, network)
            group = worker_models(past_candidate(run), cluster)
            assert not isinstance(group, str)
            exposed_s = predict_allreduce(group, strategy, cluster).parts.communication_s
            low, high = (middle, high) if exposed_s > run.communication_s else (low, middle)
        found.append((low + high) / 2)
    return _loopback(math.exp(sum(found) / len(found)))


def _loopback(bandwidth: float) -> LinkFacts:
    return LinkFacts(latency_s=LOOPBACK.latency_s, bandwidth_bytes_per_s=bandwidth)


def _corrections(
    runs: Sequence[RunMeasures], past: _Past, network: NetworkFacts
) -> dict[str, Correction]:
    found: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if not _is_seen_through(run, network):
            continue
        throughput = predicted_throughput(run, past.cluster(run, network))
        scale = run.samples_per_s / throughput.samples_per_s / throughput.parts.total_s
        exchange = throughput.parts.communication_s * scale
        rest = throughput.parts.total_s * scale - exchange
        found.setdefault(throughput.family, []).append((rest, exchange))
    return {family: correction_of(np.array(own)) for family, own in found.items()}


def _is_seen_through(run: RunMeasures, network: NetworkFacts) -> bool:
    """Return whether the prediction of a run rests on known facts: links and server placement."""
    hosts = set(run.hosts)
    known = all(two in network.pairs.get(one, {}) for one in hosts for two in hosts - {one})
    return known and (len(hosts) == 1 or run.job.processes.servers == 0)


def correction_of(shares: Floats) -> Correction:
    """Fit the factors of communication and of the rest by ridge regression.

    `shares` are, per run, predicted rest and communication over the measured step time.
    """
    count = len(shares)
    prior = np.diag([_PRIOR_REST, _PRIOR_EXCHANGE])
    factors = np.linalg.solve(shares.T @ shares + prior, shares.sum(axis=0) + prior.sum(axis=0))
    factors = np.clip(factors, 1 / _MOST_FACTOR, _MOST_FACTOR)
    scatter = float((np.log(shares @ factors) ** 2).sum())
    error = math.sqrt((_PRIOR_RUNS * _PRIOR_ERROR**2 + scatter) / (_PRIOR_RUNS + count))
    factor, exchange = map(float, factors)
    return Correction(factor=factor, exchange=exchange, error=error, count=count)


def predicted_throughput(run: RunMeasures, cluster: ClusterModel) -> Throughput:
    """Return the throughput that the models predict for a past run."""
    group = worker_models(past_candidate(run), cluster)
    assert not isinstance(group, str)
    throughput = throughput_of(run.job.strategy, group, cluster)
    assert not isinstance(throughput, str), "runs that cannot be predicted are no measurements"
    return throughput


def past_candidate(run: RunMeasures) -> Candidate:
    """Return the candidate that a past run corresponds to."""
    job = run.job
    batches = equal_split(job.global_batch, len(run.hosts))
    if job.batch.shares is not None:
        total = sum(job.batch.shares)
        batches = tuple(max(1, round(job.global_batch * s / total)) for s in job.batch.shares)
    servers = job.processes.servers
    colocated = job.strategy.updates_on_servers and servers == 0
    seats = []
    for number, host in enumerate(dict.fromkeys(run.hosts)):
        own = tuple(b for b, where in zip(batches, run.hosts, strict=True) if where == host)
        here = len(own) if colocated else servers if number == 0 else 0
        seats.append(Seat(machine=host, batches=own, threads=run.threads, servers=here))
    return Candidate(seats=tuple(seats), strategy=job.strategy, precision=run.precision)
