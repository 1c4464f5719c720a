"""The page of promises names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explain-reliability.md").read_text()


def test_every_promise_has_a_test_or_a_benchmark_that_is_there() -> None:
    missing = []
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert len(rows) > 80
    for row in rows:
        proof = row.split(" | ")[1]
        file = None
        for path, name in re.findall(r"`([\w/]+\.py)?(?:::)?(\w+)?`", proof):
            file = ROOT / path if path else file
            if file is None or not file.is_file():
                missing.append(f"{path or row}: no such file")
            elif name and f"def {name}(" not in file.read_text():
                missing.append(f"{file.name} has no {name}")
    assert not missing, "; ".join(missing)
