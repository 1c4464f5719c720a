"""Random faults, one or two at a time, over runs with servers and runs that switch.

Processes are killed, frozen, cut off, held up, told things twice, robbed of their disk and of their
clock, at named moments of the protocols. Every run must come to its right end, every server must
have counted every sample once, nobody may stand still longer than ten seconds beyond the deadline,
and nothing may be left behind or grow. Two runs at a time, forked from one fork server.

    python benchmarks/soak.py [--faults 1000] [--seed 0] [--only bsp] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psutil

from support.leaks import adopt_orphans
from support.runs import Place
from support.soak import SCENARIOS, RunReport, SoakRun
from support.warm import running_fork_server, starting

AT_A_TIME = 2
MAX_GROWTH_BYTES = 64 << 20


class Soak:
    """Runs one after another, in several threads, until enough faults have struck.

    Args:
        folder: Where the runs are made; runs without findings are removed.
        num_faults: In all.
        per_run: In each run at most.
        seed: Of everything.
        only: Name of the one scenario to run; None: all in turn.
    """

    def __init__(
        self, folder: Path, *, num_faults: int, per_run: int, seed: int, only: str | None = None
    ) -> None:
        self._folder = folder
        self._num_faults = num_faults
        self._per_run = per_run
        self._seed = seed
        self._scenarios = [one for one in SCENARIOS if only in (None, one.name)]
        self._lock = threading.Lock()
        self._num_begun = 0
        self.reports: list[RunReport] = []
        self.sizes: list[int] = []
        self.on_first_report: Callable[[], object] = lambda: None

    @property
    def num_struck(self) -> int:
        """Faults that have struck so far, in runs that have ended."""
        return sum(len(report.deeds) for report in self.reports)

    def run(self, at_a_time: int = AT_A_TIME) -> None:
        """Go on until enough faults have struck."""
        threads = [threading.Thread(target=self._go_on, name="soak") for _ in range(at_a_time)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _go_on(self) -> None:
        while True:
            with self._lock:
                rest = self._num_faults - self.num_struck
                number = self._num_begun
                self._num_begun += 1
            # The last runs need not have all that one may have; a run without faults ends it.
            if rest <= 0 or number > 4 * self._num_faults:
                return
            scenario = self._scenarios[number % len(self._scenarios)]
            folder = self._folder / f"run-{number}"
            folder.mkdir(parents=True)
            run = SoakRun(
                Place(folder, self._folder / "cache"),
                scenario,
                seed=f"{self._seed} {number}",
                num_faults=min(rest, self._per_run),
            )
            report = run.run()
            with self._lock:
                self.reports.append(report)
                if len(self.reports) == 1:
                    self.on_first_report()
            told = f"{report.scenario}: {len(report.deeds)} faults in {report.seconds:.0f} s"
            print(f"{self.num_struck:5} {told}", *report.findings, sep="\n      ", file=sys.stderr)


def soak(
    folder: Path, *, num_faults: int, per_run: int, seed: int, only: str | None = None
) -> tuple[list[RunReport], list[str]]:
    """Run everything; returns the reports, and what was left behind or has grown."""
    adopt_orphans()
    with running_fork_server() as server, starting(server.address):
        assert server.pid is not None
        process = psutil.Process(server.pid)
        whole = Soak(folder, num_faults=num_faults, per_run=per_run, seed=seed, only=only)
        whole.on_first_report = lambda: whole.sizes.append(process.memory_info().rss)
        # A few faults are one run; two would only be in each other's way.
        whole.run(at_a_time=AT_A_TIME if num_faults > per_run else 1)
        found = _left_by(process)
        grown = process.memory_info().rss - whole.sizes[0]
        if grown > MAX_GROWTH_BYTES:
            found.append(f"the fork server grew by {grown >> 20} MB")
    return whole.reports, found


def _left_by(fork_server: psutil.Process) -> list[str]:
    found = []
    deadline = time.monotonic() + 10.0
    while (children := fork_server.children()) and time.monotonic() < deadline:
        psutil.wait_procs(children, timeout=0.2)
    if children:
        found.append(f"{len(children)} processes of the fork server are left")
    others = [one for one in psutil.Process().children() if one.pid != fork_server.pid]
    if others:
        found.append(f"orphans: {[' '.join(one.cmdline()) for one in others]}")
    # Listener, lifeline and the three standard streams, selector.
    if fork_server.num_fds() > 16:
        found.append(f"the fork server holds {fork_server.num_fds()} descriptors")
    return found


def print_table(reports: list[RunReport], found: list[str], seconds: float) -> None:
    """Faults by kind, and runs by scenario."""
    print(
        f"{'scenario':20} {'runs':>5} {'faults':>7} {'starts':>7} {'recovered s':>17} {'wrong':>6}"
    )
    by_name: dict[str, list[RunReport]] = defaultdict(list)
    for report in reports:
        by_name[report.scenario].append(report)
    for name, some in sorted(by_name.items()):
        times = sorted(time for report in some for time in report.recovered_s) or [0.0]
        spread = f"{statistics.median(times):.1f}, at most {times[-1]:.1f}"
        print(
            f"{name:20} {len(some):5} {sum(len(r.deeds) for r in some):7}"
            f" {sum(r.attempts for r in some):7} {spread:>17}"
            f" {sum(bool(r.findings) for r in some):6}"
        )
    deeds = Counter(deed for report in reports for deed in report.deeds)
    print("\n" + ", ".join(f"{count} {deed}" for deed, count in deeds.most_common()))
    print(f"{sum(deeds.values())} faults in {seconds:.0f} s on {os.cpu_count()} cores")
    for report in reports:
        for finding in report.findings:
            print(f"  {report.scenario} (seed {report.seed}): {finding}")
    for finding in found:
        print(f"  {finding}")


def main() -> None:
    """Soak, print the table, and end with 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--per-run", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--keep", type=Path, help="make the runs here, and keep them")
    parser.add_argument("--json", type=Path, help="write all reports here")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        reports, found = soak(
            arguments.keep or Path(name),
            num_faults=arguments.faults,
            per_run=arguments.per_run,
            seed=arguments.seed,
            only=arguments.only,
        )
    seconds = time.monotonic() - begin
    if arguments.json:
        whole = {"seconds": seconds, "found": found, "runs": [asdict(one) for one in reports]}
        arguments.json.write_text(json.dumps(whole, indent=1))
    print_table(reports, found, seconds)
    sys.exit(1 if found or any(report.findings for report in reports) else 0)


if __name__ == "__main__":
    main()
