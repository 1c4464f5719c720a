"""Run a script for a few updates to measure its speed; record what plans of it are made from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from phalanx.errors import SpecError
from phalanx.program.own_stream import OwnStream
from phalanx.program.served_model import check_served
from phalanx.program.session import Declared
from phalanx.program.turns import ScriptTurns
from phalanx.records.script_trained import ScriptTrained
from phalanx.spec.job import JobSpec
from phalanx.spec.program import script_digest
from phalanx.wire.switch import StepLimit
from phalanx.worker.context import WorkerContext

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def trial_end(job: JobSpec, num_samples: int) -> StepLimit | None:
    """Return where a run that only measures speed ends; None: this is none."""
    trial = job.program.trial if job.program is not None else None
    if trial is None:
        return None
    return StepLimit(*divmod(trial.steps, -(-num_samples // job.global_batch)))


def trial_job(job: JobSpec, num_samples: int) -> JobSpec:
    """Return a completed job as it is trained: one that only measures speed ends early."""
    limit = trial_end(job, num_samples)
    if limit is None:
        return job
    # Without evaluations the script never leaves its loop over batches.
    return job.model_copy(update={"epochs": limit.epoch + 1, "evaluate": "never"})


def locate_script(context: WorkerContext) -> Path:
    """Return the script: the copy that was sent to this machine, or the file itself."""
    assert context.job.program is not None
    path = Path(context.job.program.script)
    sent = Path.cwd() / path.name
    return sent if not context.spec.shared_run_dir and sent.exists() else path


def record_script(
    context: WorkerContext,
    declared: Declared,
    turns: ScriptTurns,
    state: Iterable[object],
    *,
    num_parameters: int,
) -> None:
    """Record what plans need to know of a script that has been trained.

    Args:
        context: Of the chief.
        declared: What the script declared.
        turns: Taken with it.
        state: What its optimiser keeps of some of its parameters.
        num_parameters: How many these are.
    """
    source = declared.source
    kept = sum(one.numel() for one in state if isinstance(one, torch.Tensor) and one.ndim)
    context.log.record(
        ScriptTrained(
            digest=script_digest(locate_script(context)),
            epochs=declared.epochs or 1,
            global_batch=source.batch_size * declared.accumulate,
            num_samples=source.num_samples,
            num_moments=round(kept / max(1, num_parameters)),
            has_convolutions=any(
                isinstance(part, _CONVOLUTIONS)
                for one in declared.setups
                for part in one.model.modules()
            ),
            own_streams=isinstance(source, OwnStream),
            between_s=turns.between_s,
            in_step_only=not _fits_servers(declared),
        )
    )


def _fits_servers(declared: Declared) -> bool:
    try:
        check_served(declared)
    except SpecError:
        return False
    return True
