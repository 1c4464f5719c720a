"""Played workers against a real controller, few of them; `benchmarks/fleet.py` has hundreds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FLEET = Path(__file__).parents[2] / "benchmarks" / "fleet.py"
WORKERS, TICKETS = 20, 4


@pytest.mark.full
def test_a_controller_holds_a_fleet_together(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, str(FLEET), "--workers", str(WORKERS), "--step", "0.05"),
            *("--tickets", str(TICKETS), "--json", str(figures)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [found] = json.loads(figures.read_text())
    # Each ticket is assigned and reported; all else comes on top.
    assert found["messages"] > 2 * WORKERS * TICKETS
    assert found["descriptors"] > WORKERS
    assert f"{WORKERS}" in done.stdout
