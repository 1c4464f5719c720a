"""What an elastic run costs, and what a loss costs it.

Steady: samples per second of an all-reduce run with `elastic` against one without, in pairs of runs
whose order changes; the median of the ratios counts. Losses: a worker of a longer run is killed;
the records tell when the controller noticed, when the next group of the survivors began to train,
when the successor was up, and when it was given samples. One machine, so clocks are comparable.

    python benchmarks/elastic.py [--workers 3] [--pairs 5] [--losses 3] [--hidden 512 512] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.records.events import Failure, Grouped, Started
from phalanx.records.log import read_events, read_logs

LIMIT_S = 300.0
TARGET = 0.98


class Loss(NamedTuple):
    """What one loss cost, in seconds since the worker was killed."""

    noticed_s: float
    going_on_s: float
    successor_up_s: float
    successor_trains_s: float


class ElasticBench:
    """Runs of the same job in a folder of their own.

    Args:
        folder: Where.
        workers: Of each run.
        hidden: Sizes of the network's layers.
    """

    def __init__(self, folder: Path, workers: int, hidden: list[int]) -> None:
        self._folder = folder
        self._workers = workers
        self._hidden = hidden

    def steady(self, *, elastic: bool) -> float:
        """Train without a loss; returns samples per second."""
        process = self._start(epochs=40, elastic=elastic)
        printed, errors = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise SystemExit(errors)
        return float(json.loads(printed)["samples_per_s"])

    def lose(self) -> Loss:
        """Kill the last worker of a run, wait for its successor, and end the run."""
        before = set(self._runs())
        process = self._start(epochs=1_000_000, elastic=True)
        try:
            run = self._wait(lambda: next(iter(set(self._runs()) - before), None))
            victim = f"worker-{self._workers - 1}"
            self._wait(lambda: len(self._groups(run)) > 0 or None)
            pid = self._wait(lambda: self._starts(run, victim) or None)[-1].pid
            killed_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            whole = self._wait(
                lambda: next((g for g in self._groups(run)[1:] if self._is_whole(g)), None)
            )
            failures = read_events(run / "events" / "controller.jsonl", Failure)
            noticed = next(one for one in failures if isinstance(one, Failure))
            return Loss(
                noticed.mono_s - killed_s,
                self._groups(run)[1].mono_s - killed_s,
                self._starts(run, victim)[-1].mono_s - killed_s,
                whole.mono_s - killed_s,
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)

    def _start(self, *, epochs: int, elastic: bool) -> subprocess.Popen[str]:
        job: dict[str, Any] = {
            "name": "elastic-bench",
            "model": {"name": "mlp", "hidden": self._hidden},
            "data": "digits",
            "epochs": epochs,
            "workers": self._workers,
            "evaluate": "never",
            "checkpoint": {"every_epochs": None, "best": None},
            "observe": {"interval_s": None},
            "elastic": {"min": 1} if elastic else None,
        }
        (self._folder / "job.yaml").write_text(json.dumps(job))
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("phalanx")), "train", "job.yaml", "--json"],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _runs(self) -> list[Path]:
        return [path.parent for path in (self._folder / "runs").glob("*/status.json")]

    def _groups(self, run: Path) -> list[Grouped]:
        found = chain.from_iterable(read_logs(run / "events", Grouped).values())
        groups = [one for one in found if isinstance(one, Grouped)]
        return sorted(groups, key=lambda one: one.generation)

    def _starts(self, run: Path, process: str) -> list[Started]:
        found = read_events(run / "events" / f"{process}.jsonl", Started)
        return [one for one in found if isinstance(one, Started)]

    def _is_whole(self, group: Grouped) -> bool:
        return len(group.members) == self._workers and not group.waiting

    def _wait(self, probe: Callable[[], Any]) -> Any:
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            if (found := probe()) is not None:
                return found
            time.sleep(0.05)
        raise SystemExit("the run did not come so far in time")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = ElasticBench(Path(folder), given.workers, given.hidden)
        ratios = []
        for pair in range(given.pairs):
            order = (True, False) if pair % 2 else (False, True)
            speed = {elastic: bench.steady(elastic=elastic) for elastic in order}
            ratios.append(speed[True] / speed[False])
        losses = [bench.lose() for _ in range(given.losses)]
    ratio = statistics.median(ratios) if ratios else None
    columns = {name: [getattr(one, name) for one in losses] for name in Loss._fields}
    if given.json:
        print(json.dumps({"ratio": ratio, "target": TARGET} | columns))
        return
    if ratio is not None:
        print(f"steady, elastic / not: {ratio:.3f} (median of {len(ratios)}; target {TARGET})")
    for name, values in columns.items():
        if values:
            print(f"{name:20} median {statistics.median(values):.2f}  worst {max(values):.2f}")


if __name__ == "__main__":
    main()
