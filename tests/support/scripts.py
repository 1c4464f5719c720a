"""Launch users' scripts: the programs of tests/programs, by themselves and on several workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from support.runs import LIMIT_S, Place

PROGRAMS = Path(__file__).parents[1] / "programs"


def launched(place: Place, *arguments: str) -> dict[str, Any]:
    """Launch a script to its end; returns the summary."""
    done = place.run("launch", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def alone(place: Place, name: str, *arguments: str) -> list[torch.Tensor]:
    """Run a test program by itself; returns its parameters."""
    out = place.folder / f"{name}-alone.pt"
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), "--out", str(out), *arguments]
    subprocess.run(command, cwd=place.folder, check=True, timeout=LIMIT_S, capture_output=True)
    return read(out)


def read(path: Path) -> list[torch.Tensor]:
    """Read parameters that a program has written."""
    found: list[torch.Tensor] = torch.load(path)
    return found


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Return the largest difference of two lists of tensors."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def used_by_epoch(folder: Path) -> dict[str, Counter[str]]:
    """Return the samples that all workers together used, by epoch."""
    found: dict[str, Counter[str]] = {}
    for path in folder.iterdir():
        found.setdefault(path.name.partition("-")[0], Counter()).update(path.read_text().split())
    return found
