"""How long a report over 200 runs takes, and how much memory: `python benchmarks/report.py`.

Writes 200 made-up runs of 2,000 steps each, then makes the report of them in processes of their own
and prints the median. Wanted: under 10 s and under 500 MB. Processor time is printed beside the
clock's: on a busy machine only that one tells.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ROUNDS = 3
_CODE = """
import resource, sys, time
begin_s = time.perf_counter()
from pathlib import Path
from phalanx.api import make_report
make_report([Path(sys.argv[1])], page=Path(sys.argv[2]))
used = resource.getrusage(resource.RUSAGE_SELF)
print(time.perf_counter() - begin_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""


def main() -> None:
    """Measure and print."""
    from support.many_runs import write_many

    with tempfile.TemporaryDirectory() as folder:
        runs = write_many(Path(folder) / "runs", 200, 2000)
        size = sum(path.stat().st_size for path in runs.rglob("*.jsonl"))
        page = Path(folder) / "report.html"
        print(f"200 runs, 2,000 steps each, {size / 1e6:.0f} MB of events")
        figures = []
        for number in range(ROUNDS):
            done = subprocess.run(
                [sys.executable, "-c", _CODE, str(runs), str(page)],
                check=True,
                capture_output=True,
                text=True,
            )
            figures.append([float(part) for part in done.stdout.split()])
            seconds, busy, peak = figures[-1]
            print(f"  round {number + 1}: {seconds:.1f} s, CPU {busy:.1f} s, {peak / 1e6:.0f} MB")
        seconds, busy, peak = (statistics.median(column) for column in zip(*figures, strict=True))
        print(
            f"report of 200 runs: {seconds:.1f} s (wanted: under 10), CPU {busy:.1f} s, "
            f"{peak / 1e6:.0f} MB (wanted: under 500), page {page.stat().st_size / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
