"""Putting the reports of all workers together into the summary of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from phalanx.control.coordinator import Coordinator
from phalanx.control.splitting import summarise_split
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from phalanx.records.summary import ServingSummary, SplitSummary, Summary, SwitchSummary
from phalanx.records.usage import KINDS, process_uses, totals, training_windows
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.facts import ServerFacts


def summarise(
    run: RunDir,
    job: JobSpec,
    coordinator: Coordinator,
    *,
    threads: int,
    elapsed_s: float,
    attempts: int,
) -> Summary:
    """The summary of a finished run.

    Measures are over all workers. Times are
    means per worker; bytes are the sum over workers.
    """
    outcome, times = coordinator.outcome(), list(coordinator.times.values())
    share = 1.0 / max(1, len(times))
    resources = totals(read_logs(run.path / "events", *KINDS))
    return Summary(
        run_dir=str(run.path),
        name=job.name,
        state="finished",
        strategy=job.strategy.name,
        backend=job.backend,
        model=job.model.name,
        data=job.data.name,
        workers=job.workers,
        threads=threads,
        precision=outcome.precision,
        seed=job.seed,
        global_batch=job.global_batch,
        epochs=outcome.epochs,
        samples=outcome.samples,
        updates=outcome.updates,
        parameters=outcome.parameters,
        elapsed_s=elapsed_s,
        train_s=outcome.train_s,
        evaluate_s=outcome.evaluate_s,
        startup_s=outcome.startup_s,
        samples_per_s=outcome.samples / outcome.train_s if outcome.train_s > 0 else 0.0,
        train_loss=outcome.train_loss,
        train_accuracy=outcome.train_accuracy,
        regularisation=outcome.regularisation,
        val_loss=outcome.val_loss,
        val_accuracy=outcome.val_accuracy,
        test_loss=outcome.test_loss,
        test_accuracy=outcome.test_accuracy,
        val_metrics=dict(outcome.val_metrics),
        test_metrics=dict(outcome.test_metrics),
        bytes_sent=sum(one.sent_bytes for one in times),
        input_s=share * sum(one.input_s for one in times),
        compute_s=share * sum(one.compute_s for one in times),
        communication_s=share * sum(one.communication_s for one in times),
        wait_s=share * sum(one.wait_s for one in times),
        apply_s=share * sum(one.apply_s for one in times),
        overlapped_s=share * sum(one.overlapped_s for one in times),
        stopped_early=outcome.stopped_early,
        attempts=attempts,
        parameters_sha256=outcome.parameters_sha256,
        serving=coordinator.serving,
        split=_split(run, coordinator),
        inference=outcome.inference,
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
    logs = read_logs(run.path / "events", *KINDS)
    uses = process_uses(logs, training_windows(logs))
    return summarise_split(
        coordinator.splitting,
        coordinator.times,
        step_s=outcome.train_s / max(1, outcome.updates),
        cpu_s={name: use.cpu_s for name, use in uses.items()},
    )


def summarise_servers(
    spec: ParameterServerSpec,
    servers: Mapping[str, ServerFacts],
    *,
    updates: int,
    train_s: float,
    updates_lost: int,
    processes_replaced: int,
) -> ServingSummary:
    """What all servers saw, put together.

    Every push goes to every server, so counts of pushes are those of the first one; staleness is
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
