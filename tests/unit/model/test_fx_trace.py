"""Parts of networks that do not name them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from phalanx.engine.part_profiler import forms_of, graph_of, made_up
from phalanx.errors import SpecError
from phalanx.model.catalogue import build_model
from phalanx.model.fx_trace import parts_of
from phalanx.model.parts import Columns, PartedNetwork
from phalanx.spec.model import (
    CnnSpec,
    DensenetSpec,
    MlpSpec,
    MnistCnnSpec,
    ModelSpec,
    ResnetSpec,
    UserModelSpec,
)

BUILT_IN = [
    (MlpSpec(), (64,)),
    (CnnSpec(), (8, 8, 1)),
    (MnistCnnSpec(), (12, 12, 1)),
    (ResnetSpec(n=1), (8, 8, 3)),
    (DensenetSpec(depth=10), (8, 8, 3)),
    (UserModelSpec(name="phalanx_redshift:NETWORK", args={"dense": 16}), (200,)),
]


@pytest.mark.parametrize(("spec", "shape"), BUILT_IN, ids=lambda one: getattr(one, "name", ""))
def test_built_in_networks_compute_the_same_part_by_part(
    spec: ModelSpec, shape: tuple[int, ...]
) -> None:
    model = build_model(spec, input_shape=shape, num_classes=5, seed=1).eval()
    found = parts_of(model).eval()
    samples = made_up(shape, 3)
    assert torch.equal(found(samples), model(samples))
    assert {id(p) for p in found.parameters()} == {id(p) for p in model.parameters()}
    weights = [sum(p.numel() for p in found.get_submodule(n).parameters()) for n in found.reads]
    assert len(weights) > 1
    assert min(weights) > 0


class Branches(nn.Module):
    """Two branches that share a layer, a sum and a head, with functions in between."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 4)
        self.right = nn.Linear(6, 4)
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, samples: Tensor) -> Tensor:
        left = self.shared(torch.relu(self.left(samples[:, :6])))
        right = self.shared(torch.tanh(self.right(samples[:, 6:])))
        output: Tensor = self.head(torch.cat((left, right + left), dim=1))
        return output


def test_branches_joins_and_shared_layers_are_found() -> None:
    model = Branches()
    found = parts_of(model)
    samples = torch.randn(5, 12)
    assert torch.equal(found(samples), model(samples))
    assert sorted(found.reads["head"]) == ["shared", "shared-2"]
    graph = graph_of(found, forms_of(found, (12,)), num_moments=2)
    names = [part.name for part in graph.parts]
    (tied,) = graph.tied
    assert sorted(names[number] for number in tied) == ["shared", "shared-2"]


def test_what_cannot_be_traced_is_refused() -> None:
    class Fickle(nn.Module):
        def forward(self, samples: Tensor) -> Tensor:
            return samples if samples.sum() > 0 else -samples

    with pytest.raises(SpecError, match=r"parts of Fickle could not be found.*PartedNetwork"):
        parts_of(Fickle())


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ({"a": ["x"], "b": ["c"]}, "part 'b' reads 'c', which is no input and no part before it"),
        ({"a": ["x"]}, "part 'b' reads nothing"),
        ({"a": ["x"], "b": ["x"]}, "part 'a' is read by no other part"),
    ],
)
def test_parts_must_hang_together(reads: dict[str, list[str]], message: str) -> None:
    parts = {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}
    with pytest.raises(SpecError, match=message):
        PartedNetwork(parts, reads=reads, inputs={"x": Columns(0, 2)})


def test_a_part_draws_alike_wherever_it_stands() -> None:
    def network(first: nn.Module) -> PartedNetwork:
        return PartedNetwork({"a": first, "b": nn.Dropout(0.5)}, reads={"a": ["input"], "b": ["a"]})

    samples = torch.ones(4, 50)
    found = []
    for first in (nn.Identity(), nn.Dropout(0.0)):
        torch.default_generator.manual_seed(7)
        found.append(network(first)(samples))
    assert torch.equal(*found)
