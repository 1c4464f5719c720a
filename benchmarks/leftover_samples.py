"""Test accuracy under parameter servers, by the number of samples left over at the end of an epoch.

An epoch of 5,376 samples is 42 global batches of 128; with some samples more, the last batch is
smaller, and each of the four workers pushes the gradient of very few. Every sample has the same
influence, so the accuracy must not depend on how many are left over. All combinations run once per
seed, in turns, on MNIST, with the network `cnn` and plain SGD; `none` is the single process.

    python benchmarks/leftover_samples.py --data FOLDER [--seeds 5] [--left 0 1 24 64] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from phalanx import api

BATCH, WORKERS, BATCHES = 128, 4, 42
SINGLE = "none"


def job(consistency: str, left: int, seed: int) -> dict[str, Any]:
    """Two epochs of 42 batches and some samples more; validation takes a tenth."""
    wanted = BATCH * BATCHES + left
    strategy: dict[str, Any] = {"name": "parameter_server", "consistency": consistency}
    return {
        "name": f"left-{left}",
        "model": "cnn",
        "data": {"name": "mnist", "limit": wanted, "validation": 0},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "batch": {"global": BATCH},
        "epochs": 2,
        "evaluate": "end",
        "seed": seed,
        "threads": 1,
        "workers": 1 if consistency == SINGLE else WORKERS,
        "strategy": "single" if consistency == SINGLE else strategy,
        "checkpoint": {"every_epochs": None, "best": None},
        "observe": {"interval_s": None},
    }


def main() -> None:
    """Run everything, and print a row per combination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--left", type=int, nargs="+", default=[0, 1, 24, 64])
    parser.add_argument("--consistency", nargs="+", default=["async", "ssp"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, options.seeds + 1):
            for consistency in options.consistency:
                for left in options.left:
                    summary = api.train(
                        job(consistency, left, seed),
                        runs=Path(folder),
                        data_root=options.data,
                        cache_root=Path(folder) / "cache",
                    )
                    assert summary.test_accuracy is not None
                    found.setdefault((consistency, left), []).append(summary.test_accuracy)
    if options.json:
        rows = [
            {"consistency": key[0], "left": key[1], "test_accuracy": values}
            for key, values in found.items()
        ]
        print(json.dumps(rows))
        return
    print("| consistency | left over | test accuracy, % | range over seeds |")
    print("|---|---:|---:|---|")
    for (consistency, left), values in found.items():
        mean, least, most = statistics.mean(values), min(values), max(values)
        print(f"| {consistency} | {left} | {mean:.2%} | {least:.2%} to {most:.2%} |")


if __name__ == "__main__":
    main()
