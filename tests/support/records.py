"""Run and study directories written by hand: any number of them, with figures that tests choose."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.records.events import (
    Epoch,
    Event,
    Finished,
    HostSample,
    ProcessSample,
    Started,
    Step,
    Warned,
)
from phalanx.records.manifest import Manifest, write_manifest
from phalanx.records.rundir import RunDir, Status
from phalanx.records.study import (
    PlannedCell,
    PlannedGate,
    PlannedPart,
    PlannedRepeats,
    StudyDir,
    StudyManifest,
    Trial,
)
from phalanx.records.summary import ServingSummary, Summary
from phalanx.spec.loader import job_from_mapping

WALL_S = 1_800_000_000.0
MIB = 1024 * 1024
_PUBLISHED = PlannedPart(name="phalanx_published:PUBLISHED", file="published.yaml")


class Outcome(msgspec.Struct, kw_only=True):
    """What a made-up run came to."""

    accuracy: float = 0.95
    train_s: float = 10.0
    epochs: int = 4
    num_steps: int = 8
    state: str = "finished"
    cause: str | None = None
    warning: str = ""
    sampled: bool = True
    watts: float | None = None
    machines: int = 1
    """Workers take turns on them; the first one's name is `hall-9`."""

    def host(self, rank: int) -> str:
        return f"hall-{9 + rank % self.machines}"


def write_run(
    root: Path, name: str, job: Mapping[str, Any], outcome: Outcome | None = None
) -> RunDir:
    """A run directory as a real run leaves it, from nothing but these figures."""
    outcome = outcome or Outcome()
    spec = job_from_mapping(dict(job))
    run = RunDir(root / name)
    (run.path / "events").mkdir(parents=True)
    full = spec.model_dump(mode="json", by_alias=True)
    write_manifest(run, _manifest(full))
    run.write_status(Status(state=outcome.state, pid=1, attempt=1, cause=outcome.cause))
    if outcome.state == "finished":
        run.write_summary(_summary(run, full, outcome))
    _write_logs(run, full, outcome)
    return run


def write_study(
    path: Path,
    cells: Mapping[str, tuple[dict[str, str], dict[str, Any]]],
    trials: Sequence[tuple[str, int, Outcome]],
    *,
    gate: PlannedGate | None = None,
    target: Mapping[str, float] | None = None,
    published: str | None = None,
) -> StudyDir:
    """A study directory with its trials.

    Args:
        path: Where it is made.
        cells: Cell to its labels by axis, and its job.
        trials: Cell, seed and what came of it; `state: unborn` fails before there is a run.
        gate: What must be equal.
        target: What is to be reached.
        published: The text of a file with published figures.
    """
    axes: dict[str, list[str]] = {}
    planned = []
    for cell, (settings, job) in cells.items():
        full = job_from_mapping(job).model_dump(mode="json", by_alias=True)
        planned.append(PlannedCell(id=cell, settings=settings, job=full))
        for axis, label in settings.items():
            if label not in axes.setdefault(axis, []):
                axes[axis].append(label)
    manifest = StudyManifest(
        name="made-up",
        title="A made-up study",
        axes=axes,
        cells=planned,
        metric="train_s",
        repeats=PlannedRepeats(min=2, max=2),
        seeds=sorted({seed for _, seed, _ in trials}),
        gate=gate,
        target=dict(target or {}),
        report_parts=[] if published is None else [_PUBLISHED],
    )
    study = StudyDir.create(path, manifest)
    if published is not None:
        (path / "published.yaml").write_text(published)
    for number, (cell, seed, outcome) in enumerate(trials):
        settings, job = cells[cell]
        unborn = outcome.state == "unborn"
        name = f"trial-{number:03d}"
        if not unborn:
            write_run(study.runs, name, {**job, "seed": seed}, outcome)
        study.append(
            Trial(
                cell=cell,
                settings=settings,
                seed=seed,
                repeat=seed,
                state="finished" if outcome.state == "finished" else "failed",
                run=None if unborn else name,
                elapsed_s=outcome.train_s,
                cores=[0],
                cause=outcome.cause,
            )
        )
    return study


def _manifest(job: dict[str, Any]) -> Manifest:
    return Manifest(
        job=job,
        phalanx="0.0.0",
        python="3.11.0",
        packages={"torch": "2.6.0"},
        host="hall-9",
        system="Linux-made-up",
        cpu="A Processor",
        cores=4,
        memory_bytes=8 * 1024 * MIB,
        source={},
        command=["phalanx", "train", "/nowhere/job.yaml"],
        data_root="/nowhere/data",
        cache_root="/nowhere/cache",
    )


def _summary(run: RunDir, job: Mapping[str, Any], outcome: Outcome) -> Summary:
    samples = 1000 * outcome.epochs
    batch = job["batch"]["global"] or job["batch"]["per_worker"] * job["workers"]
    served = job["strategy"]["name"] == "parameter_server"
    return Summary(
        run_dir=str(run.path),
        name=job["name"],
        state="finished",
        strategy=job["strategy"]["name"],
        model=job["model"]["name"],
        data=job["data"]["name"],
        workers=job["workers"],
        threads=1,
        precision="fp32",
        seed=job["seed"],
        global_batch=batch,
        epochs=outcome.epochs,
        samples=samples,
        updates=samples // batch,
        parameters=4810,
        elapsed_s=outcome.train_s + 2.5,
        train_s=outcome.train_s,
        evaluate_s=0.5,
        startup_s=1.5,
        samples_per_s=samples / outcome.train_s,
        train_loss=0.1,
        train_accuracy=min(1.0, outcome.accuracy + 0.01),
        regularisation=0.0,
        val_loss=0.2,
        val_accuracy=outcome.accuracy,
        test_loss=0.25,
        test_accuracy=outcome.accuracy,
        bytes_sent=0 if job["workers"] == 1 else 40 * MIB,
        input_s=0.05 * outcome.train_s,
        compute_s=0.6 * outcome.train_s,
        communication_s=0.15 * outcome.train_s if job["workers"] > 1 else 0.0,
        wait_s=0.1 * outcome.train_s if job["workers"] > 1 else 0.0,
        apply_s=0.1 * outcome.train_s,
        stopped_early=False,
        attempts=1,
        parameters_sha256="0" * 64,
        serving=_serving() if served else None,
        overlapped_s=0.1 * outcome.train_s if job["workers"] > 1 else 0.0,
        energy_j=None if outcome.watts is None else outcome.watts * outcome.train_s,
    )


def _serving() -> ServingSummary:
    return ServingSummary(
        servers=1,
        consistency="async",
        updates_per_s=100.0,
        pushes=100,
        pushes_applied=98,
        pushes_dropped=2,
        staleness_mean=0.94,
        staleness_max=30,
        staleness_histogram={0: 40, 1: 45, 2: 10, 5: 2, 30: 1},
        server_busy_share=0.25,
        server_queue_max=3,
        updates_lost=0,
        processes_replaced=0,
    )


def _write_logs(run: RunDir, job: Mapping[str, Any], outcome: Outcome) -> None:
    for rank in range(job["workers"]):
        events: list[Event] = [_started(rank)]
        events += _samples(rank, outcome) if outcome.sampled else []
        events += _steps(outcome, random.Random(1000 * job["seed"] + rank))
        if rank == 0:
            events += _epochs(outcome)
            events += [Warned(message=outcome.warning)] if outcome.warning else []
        events.append(Finished(rank=rank, state=outcome.state))
        content = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        run.events_path(f"worker-{rank}").write_bytes(content)


def _started(rank: int) -> Started:
    return Started(
        rank=rank,
        role="worker",
        pid=100 + rank,
        host="hall-9",
        attempt=1,
        threads=1,
        cpus=[rank],
        precision="fp32",
        precision_reason="asked for",
        startup_s=1.5,
        wall_s=WALL_S,
        mono_s=50.0,
    )


def _steps(outcome: Outcome, dice: random.Random) -> list[Event]:
    step_s = outcome.train_s / outcome.num_steps
    return [
        Step(
            epoch=number * outcome.epochs // outcome.num_steps,
            step=number + 1,
            num_samples=16,
            loss_sum=20.0 * dice.random(),
            num_correct=dice.randrange(16),
            lr=0.1,
            input_s=0.05 * step_s,
            forward_s=0.2 * step_s,
            backward_s=0.4 * step_s,
            exchange_s=0.25 * step_s * dice.random(),
            apply_s=0.1 * step_s,
            sent_bytes=38480,
            overlapped_s=0.1 * step_s,
            wall_s=WALL_S + number * step_s,
            mono_s=100.0 + number * step_s,
        )
        for number in range(outcome.num_steps)
    ]


def _epochs(outcome: Outcome) -> list[Event]:
    return [
        Epoch(
            epoch=number,
            samples=1000 * (number + 1),
            updates=10 * (number + 1),
            train_loss=1.0 / (number + 1),
            train_accuracy=outcome.accuracy * (number + 1) / outcome.epochs,
            regularisation=0.0,
            val_loss=1.2 / (number + 1),
            val_accuracy=outcome.accuracy * (number + 2) / (outcome.epochs + 1),
            lr=0.1,
            train_s=outcome.train_s * (number + 1) / outcome.epochs,
            evaluate_s=0.1 * (number + 1),
            wall_s=WALL_S + number,
            mono_s=100.0 + number,
        )
        for number in range(outcome.epochs)
    ]


def _samples(rank: int, outcome: Outcome) -> list[Event]:
    """Eleven samples: one core busy in each process, four MiB received per second and machine."""
    found: list[Event] = []
    for tick in range(11):
        t_s = outcome.train_s * tick / 10
        moment = "begin" if tick == 0 else "end" if tick == 10 else ""
        found.append(
            ProcessSample(
                pid=100 + rank,
                host=outcome.host(rank),
                cpu_user_s=0.9 * t_s,
                cpu_system_s=0.1 * t_s,
                memory_bytes=(200 + tick) * MIB,
                memory_peak_bytes=(200 + tick) * MIB,
                threads=4,
                read_bytes=0,
                written_bytes=tick * MIB,
                moment=moment,
                wall_s=WALL_S + t_s,
                mono_s=100.0 + t_s,
            )
        )
        if rank < outcome.machines:
            found.append(
                HostSample(
                    host=outcome.host(rank),
                    cpu_user_s=2.0 * t_s,
                    cpu_system_s=0.2 * t_s,
                    cpu_idle_s=1.8 * t_s,
                    core_busy_s=[t_s, t_s, 0.1 * t_s, 0.1 * t_s],
                    load_1min=2.0,
                    memory_used_bytes=1000 * MIB,
                    memory_total_bytes=8 * 1024 * MIB,
                    received_bytes={"lo": int(4 * MIB * t_s)},
                    sent_bytes={"lo": int(4 * MIB * t_s)},
                    energy_j=None if outcome.watts is None else outcome.watts * t_s,
                    energy_source="" if outcome.watts is None else "model",
                    wall_s=WALL_S + t_s,
                    mono_s=100.0 + t_s,
                )
            )
    return found
