"""What a script saves of a model whose parameters lie in one buffer."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from phalanx.program.gradients import ScriptGradients, save_plainly


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def moved(model: nn.Module) -> torch.Tensor:
    """Move the parameters into one buffer, as at the beginning of a script's loop."""
    named = dict(model.named_parameters())
    size = sum(p.numel() for p in named.values())
    flat = torch.empty(size)
    ScriptGradients(named, parameters=flat, gradients=torch.zeros(size), bucket_bytes=None)
    save_plainly(model)
    return flat


def test_files_hold_plain_tensors_and_what_is_tied_stays_tied(tmp_path: Path) -> None:
    model = Tied()
    moved(model)
    state = model.state_dict()
    assert state["head.weight"] is state["embed.weight"]
    assert state["norm.weight"].untyped_storage().nbytes() == 3 * 4
    del state["head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["embed.weight"], model.embed.weight)


def test_a_copy_of_the_model_keeps_live_tensors_and_it_can_be_loaded() -> None:
    model = Tied()
    flat = moved(model)
    other = copy.deepcopy(model)
    other.state_dict()["embed.weight"].zero_()
    assert not other.embed.weight.any()
    model.load_state_dict(other.state_dict())
    assert not model.embed.weight.any()
    storage = model.embed.weight.untyped_storage()
    assert storage.data_ptr() == flat.untyped_storage().data_ptr()
    assert model.state_dict(keep_vars=True)["embed.weight"] is model.embed.weight
