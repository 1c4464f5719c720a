"""Our input pipeline against torch's DataLoader: CIFAR-10, flip and pad-crop, batches of 128.

Both read from memory, deliver normalised float32 batches and do nothing with them. The DataLoader
is written as a careful user writes it without torchvision: uint8 tensors, one sample at a time, the
cheap operations on bytes before the conversion to float. It is tried with no worker processes and
with two, and the better one counts. Rounds alternate A B A B on the same machine; medians count.

    python benchmarks/input.py [--data DIR] [--rounds 5] [--samples 20000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from phalanx.data.base import Array
from phalanx.data.pipeline import open_dataset, train_batches
from phalanx.errors import DataError
from phalanx.spec.data import DataSpec

BATCH = 128
PAD = 4
TARGET_RATIO = 5.0


class PerSample(Dataset[tuple[torch.Tensor, int]]):
    """What a DataLoader is given: random flip, pad and crop of one image, then normalisation."""

    def __init__(self, images: Array, labels: Array, mean: list[float], std: list[float]) -> None:
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        self.labels = labels.tolist()
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        padded = torch.nn.functional.pad(image, (PAD, PAD, PAD, PAD))
        top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
        cropped = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        return cropped.float().sub_(self.mean).div_(self.std), self.labels[index]


def main() -> None:
    """Measure and print the table."""
    options = _options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        print(f"Input: {_measure(options, Path(scratch))}")


def _measure(options: argparse.Namespace, scratch: Path) -> str:
    spec = DataSpec(
        name="cifar10", augment=("flip", "pad-crop"), limit=options.samples, validation=0.0
    )
    try:
        dataset = open_dataset(spec, data_root=options.data, cache_root=scratch / "cache")
        origin = f"CIFAR-10 from {options.data}"
    except DataError:
        spec = spec.model_copy(update={"name": str(_synthetic(scratch, options.samples))})
        dataset = open_dataset(spec, data_root=options.data, cache_root=scratch / "cache")
        origin = f"synthetic arrays of CIFAR-10's shape (CIFAR-10 is not in {options.data})"
    part = dataset.train
    images, labels = part.inputs[part.rows], part.targets[part.rows]
    peer = PerSample(images, labels, list(dataset.statistics.mean), list(dataset.statistics.std))

    def ours(epoch: int) -> int:
        with train_batches(
            dataset, spec=spec, seed=1, epoch=epoch, global_batch=BATCH, rank=0, num_workers=1
        ) as batches:
            return sum(len(batch) for batch in batches)

    def loader(num_workers: int) -> Callable[[int], int]:
        batches = DataLoader(
            peer,
            batch_size=BATCH,
            shuffle=True,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )
        return lambda epoch: sum(len(labels) for _, labels in batches)

    contenders = {
        "phalanx": ours,
        "DataLoader, 0 workers": loader(0),
        "DataLoader, 2 workers": loader(2),
    }
    return _table(origin, len(labels), _rounds(contenders, options.rounds))


def _rounds(contenders: dict[str, Callable[[int], int]], rounds: int) -> dict[str, list[float]]:
    """Samples per second of each contender in each round; the first round only warms up."""
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            num_samples = run(round_number)
            speed = num_samples / (time.perf_counter() - started)
            if round_number:
                speeds[name].append(speed)
    return speeds


def _table(origin: str, num_samples: int, speeds: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    best_peer = max(speed for name, speed in medians.items() if name != "phalanx")
    ratio = medians["phalanx"] / best_peer
    lines = [
        f"{origin}; {num_samples:,} samples per round, {len(speeds['phalanx'])} rounds, "
        f"batch {BATCH}, flip and pad-crop",
        f"{'':24}{'samples/s':>12}{'lowest':>12}{'highest':>12}",
    ]
    for name, values in speeds.items():
        row = f"{medians[name]:>12,.0f}{min(values):>12,.0f}{max(values):>12,.0f}"
        lines.append(f"{name:24}{row}")
    verdict = "reached" if ratio >= TARGET_RATIO else "missed"
    lines.append(
        f"ratio to the better DataLoader: {ratio:.1f}x (target {TARGET_RATIO:.0f}x: {verdict})"
    )
    return "\n".join(lines)


def _synthetic(scratch: Path, num_samples: int) -> Path:
    generator = np.random.default_rng(0)
    path = scratch / "synthetic.npz"
    images = generator.integers(0, 256, (num_samples, 32, 32, 3), dtype=np.uint8)
    rest = generator.integers(0, 10, num_samples)
    np.savez(path, x=images, y=rest, x_test=images[:BATCH], y_test=rest[:BATCH])
    return path


def _options() -> argparse.Namespace:
    default = os.environ.get("PHALANX_DATA", "~/.cache/phalanx/data")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, default=Path(default).expanduser(), help="data directory"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--samples", type=int, default=20_000, help="samples per round")
    return parser.parse_args()


if __name__ == "__main__":
    main()
