"""The script of the tutorial runs as the page says: alone, on two workers, with one result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.runs import LIMIT_S, Place

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-own-script.md"


def test_the_tutorial_does_what_it_says(place: Place) -> None:
    # The first block is the whole script; what follows it are parts of others.
    script, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (place.folder / "train.py").write_text(script)
    alone = subprocess.run(
        [sys.executable, "train.py"],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    lines = [line for line in alone.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == 6
    assert float(lines[-1].split()[-1]) > 0.9
    launched = place.run("launch", "--workers", "2", "train.py")
    assert launched.returncode == 0, launched.stderr
    assert [line for line in launched.stdout.splitlines() if line in lines] == lines
