"""Combine the reports of all workers into the summary of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from phalanx.control.coordinator import Coordinator
from phalanx.control.split_summary import summarise_split
from phalanx.records.events import AttemptTotals
from phalanx.records.rundir import RunDir
from phalanx.records.summary import ServingSummary, SplitSummary, Summary, SwitchSummary
from phalanx.records.total_use import cpu_by_process, total_use
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.messages import WorkTimes
from phalanx.wire.server_stats import ServerStats

_PHASES = [name for name in WorkTimes.__struct_fields__ if name.endswith("_s")]


def summarise(
    run: RunDir,
    job: JobSpec,
    coordinator: Coordinator,
    *,
    threads: int,
    whole: AttemptTotals,
) -> Summary:
    """Summarise a finished run.

    Fields of `RunOutcome` keep their names. Metrics are over all workers, times are means per
    worker, bytes are sums over workers; all attempts of the run count.

    Args:
        run: Its directory.
        job: Its job.
        coordinator: Of its last phase.
        threads: Of each worker.
        whole: Totals of all attempts.
    """
    outcome = msgspec.structs.replace(coordinator.outcome(), startup_s=whole.startup_s)
    resources = total_use(run.path / "events")
    times = {name: getattr(whole.times, name) for name in _PHASES}
    return Summary(
        **msgspec.structs.asdict(outcome),
        **times,
        run_dir=str(run.path),
        name=job.name,
        state="finished",
        strategy=job.strategy.name,
        backend=job.backend,
        model=job.model_name,
        data=job.data_name,
        workers=job.workers,
        threads=threads,
        seed=job.seed,
        global_batch=job.global_batch,
        elapsed_s=whole.elapsed_s,
        samples_per_s=outcome.samples / outcome.train_s if outcome.train_s > 0 else 0.0,
        bytes_sent=whole.times.sent_bytes,
        attempts=whole.attempt,
        serving=coordinator.serving,
        split=_split(run, coordinator),
        switches=[
            SwitchSummary(
                before=one.before,
                after=one.after,
                cause=one.cause,
                epoch=one.epoch,
                samples=one.samples,
                pause_s=one.pause_s,
            )
            for one in coordinator.switches
        ],
        cpu_s=resources.cpu_s,
        memory_peak_bytes=resources.memory_peak_bytes,
        energy_j=resources.energy_j,
        energy_source=resources.energy_source or None,
    )


def _split(run: RunDir, coordinator: Coordinator) -> SplitSummary | None:
    if coordinator.splitting is None:
        return None
    outcome = coordinator.outcome()
    return summarise_split(
        coordinator.splitting,
        coordinator.times,
        step_s=outcome.train_s / max(1, outcome.updates),
        cpu_s=cpu_by_process(run.path / "events"),
    )


def summarise_servers(
    spec: ParameterServerSpec,
    servers: Mapping[str, ServerStats],
    *,
    updates: int,
    train_s: float,
    updates_lost: int,
    processes_replaced: int,
) -> ServingSummary:
    """Combine the totals of all servers.

    Every push goes to every server, so counts of pushes are those of the first; staleness is
    counted over the pushes of all.
    """
    facts = sorted(servers.values(), key=lambda one: one.server)
    histogram: Counter[int] = Counter()
    for one in facts:
        for staleness in one.staleness.values():
            histogram.update(staleness.histogram)
    count = max(1, sum(histogram.values()))
    return ServingSummary(
        servers=len(facts),
        consistency=spec.consistency,
        updates_per_s=updates / train_s if train_s > 0 else 0.0,
        pushes=facts[0].pushes if facts else 0,
        pushes_applied=facts[0].applied if facts else 0,
        pushes_dropped=facts[0].dropped if facts else 0,
        staleness_mean=sum(value * times for value, times in histogram.items()) / count,
        staleness_max=max(histogram, default=0),
        staleness_histogram=dict(sorted(histogram.items())),
        server_busy_share=max((one.busy_share for one in facts), default=0.0),
        server_queue_max=max((one.queue_max for one in facts), default=0),
        updates_lost=updates_lost,
        processes_replaced=processes_replaced,
    )
