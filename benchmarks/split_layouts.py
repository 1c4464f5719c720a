"""The reference network split over five unequal machines, in every layout: balance and bytes.

Five hosts are emulated on this machine (root is needed) with shares of the processor as 8:4:4:4:4
and links of 1 Gbit/s; the land-cover network of 10.7 million parameters is split over them in all
placements, and trained data-parallel with a parameter server. Imbalance is the busiest machine's
computing time over the mean of those that compute.

Bytes are taken from the kernel's counters of the workers' connections. Those also see how links are
timed, how the network is put together at the end, and messages to the controller; so each layout is
trained twice more, its parts where they were, for few steps and for many: what the longer run sent
beyond the shorter one, over the steps that it did beyond it, is what a step sends.

Targets: bytes within 5 % of those predicted in every layout; the planned one has the lowest
imbalance, and sends a hundredth of the parameter server's bytes per step at the most.

    sudo python benchmarks/split_layouts.py [--samples 480] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from emulated import emulated
from phalanx import api
from phalanx.cli.settings import cache_root, data_root
from phalanx.launch.base import PoolRequest
from phalanx.records.summary import SplitSummary, Summary
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.pool_file import load_pool

CLUSTER = """
cluster: layouts
hosts:
  - {name: big, cores: 0.64, link: 1Gbit/s}
  - {name: small-1, cores: 0.32, link: 1Gbit/s}
  - {name: small-2, cores: 0.32, link: 1Gbit/s}
  - {name: small-3, cores: 0.32, link: 1Gbit/s}
  - {name: small-4, cores: 0.32, link: 1Gbit/s}
"""
RECIPE = Path(__file__).parents[1] / "recipes" / "model-split"
WORKERS, BATCH, NUM_CLASSES = 5, 32, 12
PLACEMENTS = ("round_robin", "by_layers", "by_parameters", "planned")
SERVER = {"name": "parameter_server", "consistency": "async", "servers": 1, "lr_scaling": "none"}
LONGER = 3
TARGET_BYTES, TARGET_TRAFFIC = 0.05, 100.0


class Layout(msgspec.Struct, kw_only=True):
    """One way to train on the five machines."""

    name: str
    step_s: float
    bytes_per_step: float
    """By the kernel's count for splits, by the servers' own for the parameter server."""
    predicted_bytes: int | None = None
    own_bytes: float | None = None
    """Sent per step by the run's own count."""
    imbalance: float | None = None
    predicted_imbalance: float | None = None

    @property
    def off(self) -> float:
        """How far the kernel's count is from the predicted bytes, as a share."""
        if not self.predicted_bytes:
            return 0.0
        return self.bytes_per_step / self.predicted_bytes - 1


class Lab:
    """The emulated machines and where their runs go."""

    def __init__(self, pool: Path, runs: Path, samples: int) -> None:
        self._order = PoolRequest(pool=load_pool(pool).spec, source=str(pool))
        self._runs, self._samples = runs, samples

    def split(self, placement: str) -> Layout:
        """Train with the network's parts on different machines."""
        found = self._split(placement, self._samples)
        if any(len(ranks) > 1 for ranks in found.places.values()):
            raise ValueError(f"{placement} holds a part twice, which no mapping can repeat")
        places = {part: ranks[0] for part, ranks in found.places.items()}
        few, many = (
            self._split(places, samples).socket_bytes
            for samples in (self._samples, LONGER * self._samples)
        )
        assert few is not None, "the kernel counts no bytes here"
        assert many is not None
        steps = (LONGER - 1) * self._samples // BATCH
        return Layout(
            name=f"split {placement}",
            step_s=found.step_s,
            bytes_per_step=(many - few) / steps,
            predicted_bytes=found.predicted_bytes_per_step,
            own_bytes=found.bytes_per_step,
            imbalance=found.imbalance,
            predicted_imbalance=found.predicted_imbalance,
        )

    def _split(self, placement: str | dict[str, int], samples: int) -> SplitSummary:
        strategy = {"name": "split", "placement": placement}
        found = self._train({"strategy": strategy, "batch": {"global": BATCH}}, samples).split
        assert found is not None
        return found

    def serve(self) -> Layout:
        """Train copies of the whole network with a parameter server, the same batch on each."""
        summary = self._train({"strategy": SERVER, "batch": {"per_worker": BATCH}}, self._samples)
        # One step of a split sees as many samples as one push of one worker.
        steps = summary.samples / BATCH
        return Layout(
            name="data-parallel PS",
            step_s=summary.train_s / steps,
            bytes_per_step=summary.bytes_sent / steps,
        )

    def _train(self, settings: dict[str, Any], samples: int) -> Summary:
        job = {
            "name": "layouts",
            "python_path": [str(RECIPE)],
            "model": "phalanx_land_cover:NETWORK",
            "data": {
                "name": "phalanx_land_cover:SCENES",
                "validation": 0,
                "args": {"per_class": samples // NUM_CLASSES, "test_stride": 10},
            },
            "optimizer": {"name": "adam", "lr": 0.001},
            "workers": WORKERS,
            "threads": 1,
            "evaluate": "never",
            "checkpoint": {"every_epochs": None, "best": None},
        }
        return api.train(
            job_from_mapping(job | settings),
            runs=self._runs,
            data_root=data_root(None),
            cache_root=cache_root(),
            machines=self._order,
        )


def show(layouts: list[Layout]) -> Table:
    """All layouts."""
    table = Table("layout", "step", "imbalance", "predicted", "MB per step", "predicted", "off")
    for one in layouts:
        known = one.imbalance is not None
        table.add_row(
            one.name,
            f"{one.step_s:.2f} s",
            f"{one.imbalance:.2f}" if known else "",
            f"{one.predicted_imbalance:.2f}" if known else "",
            f"{one.bytes_per_step / 1e6:.3f}",
            f"{one.predicted_bytes / 1e6:.3f}" if one.predicted_bytes is not None else "",
            f"{one.off:+.2%}" if known else "",
        )
    return table


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=480, help="training samples")
    parser.add_argument("--json", type=Path, help="write the layouts to this file as well")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder, emulated(CLUSTER, Path(folder)) as pool:
        lab = Lab(pool, Path(folder) / "runs", arguments.samples)
        layouts = []
        for name in PLACEMENTS:
            layouts.append(lab.split(name))
            console.print(f"{name} done", highlight=False)
        layouts.append(lab.serve())
    console.print(show(layouts))
    *splits, served = layouts
    planned = splits[-1]
    ratio = served.bytes_per_step / planned.bytes_per_step
    even = all((one.imbalance or 0) >= (planned.imbalance or 0) for one in splits)
    worst = max(abs(one.off) for one in splits)
    console.print(
        f"bytes at most {worst:.1%} from predicted (target {TARGET_BYTES:.0%}); planned has "
        f"{'the lowest' if even else 'NOT the lowest'} imbalance and sends {ratio:,.0f} times less "
        f"than the parameter server (target {TARGET_TRAFFIC:.0f})"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([msgspec.to_builtins(one) for one in layouts]))
    return int(worst > TARGET_BYTES or not even or ratio < TARGET_TRAFFIC)


if __name__ == "__main__":
    sys.exit(main())
