"""Run a script for a few updates to measure its speed; record what plans of it are made from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from phalanx.errors import SpecError
from phalanx.program.own_stream import OwnStream
from phalanx.program.served_model import check_served
from phalanx.program.session import Declared
from phalanx.records.script_trained import ScriptTrained
from phalanx.spec.job import JobSpec
from phalanx.spec.program import script_digest
from phalanx.wire.switch import StepLimit

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


def describe_script(path: Path, declared: Declared, between_s: float) -> ScriptTrained:
    """Return what plans need to know of a script that has been trained.

    Args:
        path: The script.
        declared: What it declared.
        between_s: Time that it took between epochs and after the last one.
    """
    setup, source = declared.setups[0], declared.source
    held, state = next(iter(setup.optimizer.state.items()), (None, {}))
    return ScriptTrained(
        digest=script_digest(path),
        epochs=declared.epochs or 1,
        global_batch=source.batch_size * declared.accumulate,
        num_samples=source.num_samples,
        num_moments=sum(
            isinstance(one, torch.Tensor) and held is not None and one.shape == held.shape
            for one in state.values()
        ),
        has_convolutions=any(
            isinstance(part, _CONVOLUTIONS)
            for one in declared.setups
            for part in one.model.modules()
        ),
        own_streams=isinstance(source, OwnStream),
        between_s=between_s,
        in_step_only=not _fits_servers(declared),
    )


def _fits_servers(declared: Declared) -> bool:
    try:
        check_served(declared)
    except SpecError:
        return False
    return True
