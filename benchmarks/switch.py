"""How long a switch keeps a run from training: in the living processes, against through a restart.

Two workers on this machine train a network of 25 million parameters by allreduce, go to an
asynchronous parameter server inside the workers, and come back. The same job is run with
`handover: live` and with `handover: restart`, in turn, and the order changes from round to round.
What counts is the longest time between the last step that a worker did before the switch and the
moment at which it can do the next. For restarts the clock only begins when the checkpoint is
written and the old processes are told to leave, which is to their advantage.

Targets: less than a second live, and at least ten times less than by a restart.

    python benchmarks/switch.py [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phalanx.api import train

WIDTH = 4960  # two hidden layers: 24,978,570 parameters
TARGET_S, TARGET_RATIO = 1.0, 10.0
DIRECTIONS = ("allreduce to servers", "servers to allreduce")
SERVERS = {"name": "parameter_server", "servers": "colocated", "dispatch": "dynamic"}


def job(handover: str) -> dict[str, Any]:
    """One epoch over the digits, switched there and back in the middle of it."""
    return {
        "name": handover,
        "model": {"name": "mlp", "hidden": [WIDTH, WIDTH]},
        "data": "digits",
        "batch": {"global": 64},
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
        "workers": 2,
        "evaluate": "never",
        "checkpoint": {"every_epochs": None, "best": None},
        "strategy": {
            "name": "switch",
            "handover": handover,
            "phases": [
                {"strategy": "allreduce"},
                {"strategy": SERVERS, "at": 0.3},
                {"strategy": "allreduce", "at": 0.7},
            ],
        },
    }


def pauses(handover: str, cache: Path) -> tuple[list[float], int]:
    """The pauses of one run in seconds, and the number of parameters."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train(job(handover), runs=Path(folder), data_root=Path(folder), cache_root=cache)
        return [switch.pause_s for switch in summary.switches], summary.parameters


def measure(rounds: int) -> tuple[dict[str, list[list[float]]], int]:
    """Pauses by kind of hand-over, direction and round."""
    found: dict[str, list[list[float]]] = {kind: [[], []] for kind in ("live", "restart")}
    parameters = 0
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):
            kinds = list(found) if number % 2 == 0 else list(found)[::-1]
            for kind in kinds:
                seconds, parameters = pauses(kind, Path(cache))
                for direction, one in enumerate(seconds):
                    found[kind][direction].append(one)
    return found, parameters


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found, parameters = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps({"parameters": parameters, "pause_s": found}))
        return
    title = f"pause of a switch, {parameters:,} parameters, median of {arguments.rounds}"
    table = Table(title=f"{title} (least to most)")
    for heading in ("direction", "live s", "restart s", "ratio", "target"):
        table.add_column(heading)
    for direction, name in enumerate(DIRECTIONS):
        live, restart = (found[kind][direction] for kind in ("live", "restart"))
        ratio = statistics.median(r / one for r, one in zip(restart, live, strict=True))
        met = statistics.median(live) < TARGET_S and ratio >= TARGET_RATIO
        table.add_row(
            name, spread(live), spread(restart), f"{ratio:.1f}", "met" if met else "missed"
        )
    Console().print(table)


def spread(seconds: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
