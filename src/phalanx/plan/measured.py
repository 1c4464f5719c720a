"""Measure earlier runs: computation of workers, throughput, load of servers.

Reads run directories and keeps sums and means, never whole logs. The first steps of each process
are excluded as warm-up: caches fill, memory is allocated, and the first exchange waits for the last
process to start. `calibrate` fits the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from phalanx.errors import SpecError, StoreError
from phalanx.records.attempts import split_attempts
from phalanx.records.events import AnyEvent, NetworkBuilt, ProcessSample, Served, Started, Step
from phalanx.records.log import read_logs
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir
from phalanx.records.script_trained import ScriptTrained
from phalanx.records.step_phases import Comparison
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.kinds import kind_of
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.program import complete_job

# Warm-up steps of each process, or a quarter of a short run; see `_num_skipped`.
_WARM_UP_STEPS = 5
_LEAST_STEPS = 6
# Winsorise stalls at this quantile, so that a single one does not dominate the jitter.
_STALL_QUANTILE = 0.98


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one machine's workers with the same batch size, in one run."""

    host: str
    threads: int
    workers: int
    """Workers on the machine."""
    precision: str
    batch: int
    count: int
    compute_s: float
    """Mean of input, forward, backward and the gaps between phases."""
    jitter: float
    backward_share: float
    apply_s: float


class RunMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one run."""

    name: str
    job: JobSpec
    num_parameters: int
    groups: tuple[StepGroup, ...]
    hosts: tuple[str, ...]
    """Machine of each worker, by rank."""
    threads: int
    cores: int
    """Cores of the machine that started the run."""
    precision: str
    samples_per_s: float
    """Throughput of all workers, in steady state."""
    communication_s: float
    """Mean exposed communication of a step, without waiting."""
    startup_s: float
    warm_up_s: float
    """Extra time of the warm-up steps, maximum over workers."""
    peak_bytes: tuple[tuple[int, int], ...] = ()
    """Pairs of batch size and peak memory of a worker."""
    server_push_s: float | None = None
    """A server's time per push."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the parameters; empty: the run did not record them."""
    script: ScriptTrained | None = None
    """What the user's script has declared; None: it is a job of ours."""

    @property
    def num_moments(self) -> int:
        """Return the optimiser's state values per parameter."""
        slots = len(self.job.optimizer.slots)
        return slots if self.script is None else self.script.num_moments


def measure_run(run: RunDir) -> RunMeasures | None:
    """Measure a run; None: unfinished, perturbed on purpose, or too short."""
    try:
        summary = run.read_summary()
    except msgspec.ValidationError:
        # Written by another version of Phalanx.
        return None
    if summary is None or summary.state != "finished" or not summary.parameters:
        return None
    try:
        manifest = read_manifest(run)
        job = job_from_mapping(manifest.job)
    except (SpecError, StoreError):
        # Written by another version of Phalanx, or half copied.
        return None
    # Phases of a switch and parts of a split network are measured in other ways.
    other = job.backend != "native" or bool(job.strategy.resolved) or job.strategy.splits_model
    if other or job.inject or job.profile or not kind_of(job.strategy).predictor:
        return None
    kinds = (Started, NetworkBuilt, Step, ProcessSample, Served, ScriptTrained)
    logs = read_logs(run.path / "events", *kinds)
    workers = _last_attempt(logs)
    if not workers:
        return None
    comparison = Comparison(event for events in workers.values() for event in events)
    every = job.strategy.exchange_every
    all_steps = {name: _steps(events) for name, events in workers.items()}
    skipped = {name: _num_skipped(len(own), every) for name, own in all_steps.items()}
    steps = {name: own[skipped[name] :] for name, own in all_steps.items()}
    started = {name: _started(events) for name, events in workers.items()}
    if any(len(own) < _LEAST_STEPS for own in steps.values()) or not all(started.values()):
        return None
    script = _script(workers)
    if job.program is not None:
        if script is None:
            return None
        job = _completed(job, script, steps.values())
    starts = [one for one in started.values() if one is not None]
    # With the step before, whose end is the start time of the first.
    rates = [_rate(own[max(0, skipped[name] - 1) :]) for name, own in all_steps.items()]
    if any(rate is None for rate in rates):
        return None
    on_host = Counter(start.host for start in starts)
    groups = [
        group
        for start, own in zip(starts, steps.values(), strict=True)
        for group in _groups(start, own, on_host[start.host])
    ]
    exposed_s = [comparison.phases(step).communication_s for own in steps.values() for step in own]
    return RunMeasures(
        name=run.name,
        job=job,
        num_parameters=summary.parameters,
        groups=tuple(groups),
        hosts=tuple(start.host for start in starts),
        threads=starts[0].threads,
        cores=manifest.cores,
        precision=starts[0].precision,
        samples_per_s=sum(rate for rate in rates if rate is not None),
        communication_s=float(np.mean(exposed_s)),
        startup_s=_startup_s(summary, script),
        warm_up_s=max(_warm_up_s(own, skipped[name]) for name, own in all_steps.items()),
        peak_bytes=_peaks(workers, steps),
        server_push_s=_server_push_s(logs),
        shapes=_shapes(logs),
        script=script,
    )


def _script(workers: dict[str, list[AnyEvent]]) -> ScriptTrained | None:
    events = (event for own in workers.values() for event in own)
    return next((event for event in events if isinstance(event, ScriptTrained)), None)


def _completed(job: JobSpec, script: ScriptTrained, steps: Iterable[Sequence[Step]]) -> JobSpec:
    """Return a script's job with the batch that its workers had, of which a trial takes a part."""
    rows = sum(int(np.median([step.num_samples for step in own])) for own in steps)
    return complete_job(job, epochs=script.epochs, global_batch=max(1, rows))


def _startup_s(summary: Summary, script: ScriptTrained | None) -> float:
    # A script evaluates and saves without saying so.
    besides_s = summary.evaluate_s if script is None else script.between_s
    spent_s = summary.elapsed_s - summary.train_s - besides_s
    return max(0.0, spent_s) / max(1, summary.attempts)


def _last_attempt(logs: dict[str, list[AnyEvent]]) -> dict[str, list[AnyEvent]]:
    """Return the events of each worker by rank; of a resumed run only the last attempt."""
    found: dict[str, list[AnyEvent]] = {}
    for name, events in logs.items():
        if name.startswith("worker-"):
            parts = split_attempts(events)
            found[name] = parts[max(parts)] if parts else []
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition("-")[2])))


def _steps(events: Iterable[AnyEvent]) -> list[Step]:
    # Without events of several steps, which a run of 100,000 steps does not need to be measured.
    steps = [event for event in events if isinstance(event, Step)]
    return [step for step in steps if step.num_samples > 0 and step.num_steps == 1]


def _num_skipped(num_steps: int, every: int) -> int:
    """Count the warm-up steps: whole rounds up to an exchange, where not all steps have one."""
    return math.ceil(min(_WARM_UP_STEPS, num_steps // 4) / every) * every


def _warm_up_s(steps: Sequence[Step], skipped: int) -> float:
    """Return the extra time of the warm-up steps over as many later ones."""
    usual_s = float(np.median([step.duration_s for step in steps[skipped:]]))
    return max(0.0, sum(step.duration_s for step in steps[:skipped]) - usual_s * skipped)


def _started(events: Iterable[AnyEvent]) -> Started | None:
    return next((event for event in events if isinstance(event, Started)), None)


def _spans(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Return each step but the first of an epoch, with the time since the previous step's end."""
    return [
        (step, step.mono_s - before.mono_s)
        for before, step in pairwise(steps)
        if step.epoch == before.epoch
    ]


def _rate(steps: Sequence[Step]) -> float | None:
    spans = _spans(steps)
    total_s = sum(span_s for _, span_s in spans)
    return sum(step.num_samples for step, _ in spans) / total_s if total_s > 0 else None


def _groups(start: Started, steps: Sequence[Step], workers: int) -> list[StepGroup]:
    rest_s = [span_s - step.duration_s for step, span_s in _spans(steps)]
    between_s = max(0.0, float(np.median(rest_s))) if rest_s else 0.0
    by_batch: dict[int, list[Step]] = {}
    for step in steps:
        by_batch.setdefault(step.num_samples, []).append(step)
    return [
        _group(start, own, batch, workers, between_s) for batch, own in sorted(by_batch.items())
    ]


def _group(
    start: Started, steps: Sequence[Step], batch: int, workers: int, between_s: float
) -> StepGroup:
    times_s = np.array([step.input_s + step.forward_s + step.backward_s for step in steps])
    times_s += between_s
    calm_s = np.minimum(times_s, np.quantile(times_s, _STALL_QUANTILE))
    backward_s = float(np.mean([step.backward_s for step in steps]))
    return StepGroup(
        host=start.host,
        threads=start.threads,
        workers=workers,
        precision=start.precision,
        batch=batch,
        count=len(steps),
        compute_s=float(times_s.mean()),
        jitter=float(calm_s.std() / calm_s.mean()),
        backward_share=backward_s / float(times_s.mean()),
        apply_s=float(np.mean([step.apply_s for step in steps])),
    )


def _peaks(
    workers: dict[str, list[AnyEvent]], steps: dict[str, list[Step]]
) -> tuple[tuple[int, int], ...]:
    peaks = []
    for name, events in workers.items():
        own = [event.memory_peak_bytes for event in events if isinstance(event, ProcessSample)]
        if own:
            peaks.append((max(step.num_samples for step in steps[name]), max(own)))
    return tuple(peaks)


def _server_push_s(logs: dict[str, list[AnyEvent]]) -> float | None:
    totals = [
        served[-1].facts
        for events in logs.values()
        if (served := [event for event in events if isinstance(event, Served)])
    ]
    pushes = sum(facts.pushes for facts in totals)
    return sum(facts.busy_s for facts in totals) / pushes if pushes else None


def _shapes(logs: dict[str, list[AnyEvent]]) -> tuple[tuple[int, ...], ...]:
    for event in logs.get("worker-0", ()):
        if isinstance(event, NetworkBuilt):
            return tuple(slot.shape for slot in event.parameters)
    return ()
