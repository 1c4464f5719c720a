"""Many runs are read without keeping them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.many_runs import write_many

NUM_RUNS = 200
STEPS = 2000
LIMIT_MIB = 500


def test_two_hundred_runs_fit_into_memory(tmp_path: Path) -> None:
    runs = write_many(tmp_path / "runs", NUM_RUNS, STEPS)
    code = (
        "import re, sys; from pathlib import Path; from phalanx.api import make_report\n"
        "make_report([Path(sys.argv[1])], page=Path(sys.argv[2]))\n"
        # Not getrusage: its peak is that of the process that started this one, if that was higher.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())\n"
        "print(int(peak[1]) // 1024)"
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
