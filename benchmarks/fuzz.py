"""Malformed frames on every socket of ours, of strangers and of members that were admitted.

Frames are made from rightful ones with their structure in mind: other numbers, types, names,
lengths and depths in messages and headers, broken greetings and handshakes before them. Nothing may
crash, nothing may change, nothing may grow, and a rightful peer is served afterwards as before.

    python benchmarks/fuzz.py [--frames 1000000] [--seed 0] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.fuzz import TARGETS, FuzzResult, fuzz


def run(num_frames: int, seed: int, only: str | None) -> list[FuzzResult]:
    """Divide the frames over the targets by their shares."""
    targets = [target for target in TARGETS if only in (None, target.name)]
    shares = sum(target.share for target in targets)
    results = []
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            count = max(1, round(num_frames * target.share / shares))
            results.append(fuzz(target, Path(folder), num_frames=count, seed=seed))
        print_row(results[-1])
    return results


def print_row(result: FuzzResult) -> None:
    """One target, as soon as it is done."""
    print(
        f"{result.name:26} {result.frames:9,} {result.frames / max(result.seconds, 1e-9):9,.0f}"
        f" {result.grown_bytes / (1 << 20):9.1f} {result.grown_descriptors:6}",
        *result.findings or ["nothing"],
        sep="\n    " if result.findings else "  ",
        flush=True,
    )


def main() -> None:
    """Fuzz, print the table, and end with 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[target.name for target in TARGETS])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    head = ("socket", "frames", "per s", "grown MB", "fds")
    print(f"{head[0]:26} {head[1]:>9} {head[2]:>9} {head[3]:>9} {head[4]:>6}  found")
    results = run(arguments.frames, arguments.seed, arguments.only)
    print(f"{sum(result.frames for result in results):,} frames")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    sys.exit(1 if any(result.findings for result in results) else 0)


if __name__ == "__main__":
    main()
