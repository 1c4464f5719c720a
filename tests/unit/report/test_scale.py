"""Many runs are read without keeping them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from support.records import Outcome, write_run

NUM_RUNS = 200
STEPS = 2000
LIMIT_MIB = 500


def test_two_hundred_runs_fit_into_memory(tmp_path: Path) -> None:
    runs = write_many(tmp_path / "runs", NUM_RUNS, STEPS)
    code = (
        "import resource, sys; from pathlib import Path; from phalanx.api import make_report\n"
        "make_report([Path(sys.argv[1])], page=Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    page = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs), str(page)],
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert int(done.stdout) < LIMIT_MIB
    assert page.stat().st_size < 3_000_000
    text = page.read_text()
    assert text.count("<td") > NUM_RUNS
    assert "200 finished runs" in text


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
