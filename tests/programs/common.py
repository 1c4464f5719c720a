"""What the test programs share: arguments, made-up data, and the trained parameters in a file."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn


def arguments(epochs: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seen", type=Path, help="folder for the samples that each worker used")
    parser.add_argument("--accumulate", type=int, default=3, help="batches of an update (hf.py)")
    return parser.parse_args()


def write_parameters(path: Path | None, *models: nn.Module) -> None:
    if path is not None:
        torch.save([p.detach().clone() for one in models for p in one.parameters()], path)


def note_seen(folder: Path | None, rank: int, epoch: int, samples: torch.Tensor) -> None:
    """Write down which samples were used; the test adds up the files of all workers."""
    if folder is not None:
        with (folder / f"{epoch}-{rank}.txt").open("a") as file:
            file.write("".join(f"{int(one)}\n" for one in samples))


def fail_once(rank: int, step: int) -> None:
    """Kill worker 1 after a step, if the file `fault` names it; the resumed run goes on."""
    fault = Path("fault")
    if rank == 1 and fault.exists() and int(fault.read_text()) == step:
        fault.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(11)
    labels = torch.randint(0, 4, (count,), generator=drawn)
    pictures = torch.randn(count, 1, 8, 8, generator=drawn) * 0.3
    pictures[torch.arange(count), 0, labels, :] += 1.0
    return pictures, labels


def tokens(count: int) -> torch.Tensor:
    """A text of which each letter follows from the two before, with some noise."""
    drawn = torch.Generator().manual_seed(12)
    noise = torch.randint(0, 2, (count,), generator=drawn)
    text = [1, 2]
    for one in noise.tolist()[2:]:
        text.append((text[-1] * 3 + text[-2] + one) % 13)
    return torch.tensor(text)
