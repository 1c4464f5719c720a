"""Hundreds of run directories, for what has to stay quick and small with many of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.records import Outcome, write_run


def write_many(root: Path, num_runs: int, num_steps: int) -> Path:
    """Runs of ten methods and four batches; logs are copies, because writing them takes longest."""
    jobs = [
        {
            "name": "many",
            "model": "mlp",
            "data": "digits",
            "workers": 1,
            "strategy": "single",
            "batch": {"global": batch},
            "optimizer": {"name": "sgd", "lr": lr},
        }
        for batch in (16, 32, 64, 128)
        for lr in (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)
    ]
    first = write_run(root, "run-000", jobs[0], Outcome(num_steps=num_steps, epochs=20))
    for number in range(1, num_runs):
        job = {**jobs[number % len(jobs)], "seed": 1 + number // len(jobs)}
        outcome = Outcome(
            num_steps=1, epochs=20, accuracy=0.9 + 0.0001 * number, train_s=10.0 + 0.01 * number
        )
        run = write_run(root, f"run-{number:03d}", job, outcome)
        shutil.copyfile(first.events_path("worker-0"), run.events_path("worker-0"))
    return root
