"""Summaries, progress and reports with known numbers, for tests of what is shown."""

from __future__ import annotations

from typing import Any

from phalanx.control.progress import RunProgress
from phalanx.records.summary import Summary
from phalanx.wire.messages import EpochFigures


def make_summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "run_dir": "runs/job-1",
        "name": "job",
        "state": "finished",
        "strategy": "single",
        "model": "cnn",
        "data": "digits",
        "workers": 1,
        "threads": 2,
        "precision": "fp32",
        "seed": 1,
        "global_batch": 128,
        "epochs": 3,
        "samples": 3882,
        "updates": 33,
        "parameters": 19466,
        "elapsed_s": 9.04,
        "train_s": 2.0,
        "evaluate_s": 0.1,
        "startup_s": 3.5,
        "samples_per_s": 1941.0,
        "train_loss": 1.5,
        "train_accuracy": 0.5,
        "regularisation": None,
        "val_loss": 1.25,
        "val_accuracy": 0.625,
        "test_loss": 1.125,
        "test_accuracy": 0.75,
        "bytes_sent": 0,
        "input_s": 0.2,
        "compute_s": 1.0,
        "communication_s": 0.4,
        "wait_s": 0.2,
        "apply_s": 0.2,
        "stopped_early": False,
        "attempts": 1,
        "parameters_sha256": "ab" * 32,
    }
    return Summary(**(values | changes))


def make_progress(**changes: Any) -> RunProgress:
    values: dict[str, Any] = {
        "epoch": 2,
        "epochs": 10,
        "epoch_share": 0.62,
        "samples": 3_394,
        "samples_per_s": 12_345.6,
        "loss": 0.23456,
        "accuracy": 0.931,
        "lr": 0.05,
        "activity": "training",
        "elapsed_s": 12.4,
        "eta_s": 94.2,
        "time_shares": {"input": 0.02, "compute": 0.61, "communication": 0.25, "waiting": 0.12},
        "epoch_samples": 802,
        "epoch_total": 1294,
    }
    return RunProgress(**(values | changes))


def make_report(**changes: Any) -> EpochFigures:
    values: dict[str, Any] = {
        "epoch": 0,
        "samples": 1294,
        "updates": 11,
        "train_loss": 1.2034,
        "train_accuracy": 0.612,
        "regularisation": 0.01,
        "val_loss": 0.8012,
        "val_accuracy": 0.7431,
        "lr": 0.05,
        "train_s": 2.0,
        "evaluate_s": 0.5,
    }
    return EpochFigures(**(values | changes))
