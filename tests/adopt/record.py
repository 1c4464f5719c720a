"""Describe what adopt says of a script; as a program, record that for all scripts anew."""

from __future__ import annotations

from pathlib import Path

from phalanx.adopt.analysis import adopt_file
from phalanx.adopt.findings import Adoption

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))


def described(adoption: Adoption) -> str:
    """Return findings, strategies and diff as one text, without paths."""
    lines = [f"{one.line}: {one.severity}: {one.name}: {one.what}" for one in adoption.findings]
    diff = adoption.diff.split("\n", 2)[-1]
    return "\n".join([*lines, f"fits: {' '.join(adoption.strategies)}", "", diff])


if __name__ == "__main__":
    for path in SCRIPTS:
        target = HERE / "expected" / f"{path.stem}.txt"
        target.parent.mkdir(exist_ok=True)
        target.write_text(described(adopt_file(path)))
