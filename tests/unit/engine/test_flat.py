"""Flat buffers alias the module, and backward through them equals torch's own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phalanx.engine.buffers import FlatBuffers
from phalanx.engine.flat import FlatModule
from phalanx.errors import EngineError
from phalanx.model.catalogue import build_model
from phalanx.spec.model import CnnSpec, DensenetSpec, MlpSpec, ModelSpec, ResnetSpec

SPECS = [
    MlpSpec(hidden=(16,)),
    CnnSpec(filters=8, dense=16),
    ResnetSpec(n=1),
    ResnetSpec(n=1, version=2),
    DensenetSpec(depth=10, dropout=0),
]


def network(spec: ModelSpec) -> nn.Module:
    return build_model(spec, input_shape=(8, 8, 3), num_classes=10, seed=1)


def images(count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 8, 8, 3, generator=generator).permute(0, 3, 1, 2)
    return inputs, torch.randint(0, 10, (count,), generator=generator)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_writing_to_the_buffer_changes_the_module(spec: ModelSpec) -> None:
    model = network(spec).eval()
    before = model(images()[0])
    flat = FlatModule(model)
    assert torch.allclose(model(images()[0]), before, atol=1e-5)
    flat.parameters.zero_()
    assert not model(images()[0]).any()
    assert all(not p.any() for p in model.parameters())


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.parametrize("watched", [False, True])
def test_gradients_equal_plain_autograd_bitwise(spec: ModelSpec, watched: bool) -> None:
    model = network(spec)
    plain = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flat = FlatModule(model, bucket_bytes=1000)
    inputs, targets = images()
    for _ in range(2):
        plain.zero_grad()
        F.cross_entropy(plain(inputs), targets, reduction="sum").backward(torch.tensor(1 / 8))  # type: ignore[no-untyped-call]
        loss = F.cross_entropy(model(inputs), targets, reduction="sum")
        flat.backward(loss, scale=1 / 8, on_bucket_ready=(lambda _: None) if watched else None)
    views = {slot.name: slot.view(flat.gradients) for slot in flat.layout.slots}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(views[name], parameter.grad), name


def test_buckets_become_ready_in_order_with_final_gradients_during_backward() -> None:
    model = network(ResnetSpec(n=1))
    flat = FlatModule(model, bucket_bytes=20_000)
    assert len(flat.buckets) > 3
    inputs, targets = images()
    seen: list[tuple[int, Tensor, bool]] = []

    def ready(index: int) -> None:
        bucket = flat.buckets[index]
        first_layer_done = bool(flat.gradients[:10].any())
        part = flat.gradients[bucket.start : bucket.stop].clone()
        seen.append((index, part, first_layer_done))

    for _ in range(2):
        seen.clear()
        loss = F.cross_entropy(model(inputs), targets)
        flat.backward(loss, scale=1.0, on_bucket_ready=ready)
        assert [index for index, _, _ in seen] == list(range(len(flat.buckets)))
        for index, part, _ in seen:
            bucket = flat.buckets[index]
            assert torch.equal(part, flat.gradients[bucket.start : bucket.stop])
        assert not seen[0][2], "the last layers are reported before the first layer is computed"


class PartlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.unused = nn.Linear(50, 50)
        self.last = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(inputs))
        return logits


def test_unused_parameters_get_zero_and_their_bucket_still_comes() -> None:
    model = PartlyUsed()
    flat = FlatModule(model, bucket_bytes=1)
    seen: list[int] = []
    flat.gradients.fill_(7.0)
    flat.backward(model(torch.ones(1, 3)).sum(), scale=1.0, on_bucket_ready=seen.append)
    assert seen == list(range(6))
    views = {slot.name: slot.view(flat.gradients) for slot in flat.layout.slots}
    assert not views["unused.weight"].any()
    assert views["first.weight"].any()


def test_skip_reports_everything_at_zero() -> None:
    flat = FlatModule(PartlyUsed(), bucket_bytes=1)
    flat.gradients.fill_(7.0)
    seen: list[int] = []
    flat.skip(seen.append)
    assert seen == list(range(6))
    assert not flat.gradients.any()


def test_after_a_failed_callback_the_next_backward_is_right() -> None:
    model = PartlyUsed()
    flat = FlatModule(model, bucket_bytes=1)

    def fail(_: int) -> None:
        raise ConnectionError("peer left")

    with pytest.raises(ConnectionError, match="peer left"):
        flat.backward(model(torch.ones(1, 3)).sum(), scale=1.0, on_bucket_ready=fail)
    flat.backward(model(torch.ones(1, 3)).sum(), scale=1.0)
    again = flat.gradients.clone()
    seen: list[int] = []
    flat.backward(model(torch.ones(1, 3)).sum(), scale=1.0, on_bucket_ready=seen.append)
    assert torch.equal(again, flat.gradients)
    assert seen == list(range(6))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.two(self.one(inputs))
        return outputs


def test_tied_parameters_stay_tied_and_count_once() -> None:
    model = Tied()
    plain = copy.deepcopy(model)
    flat = FlatModule(model)
    assert flat.parameters.numel() == 9
    seen: list[int] = []
    flat.backward(model(torch.ones(2, 3)).sum(), scale=1.0, on_bucket_ready=seen.append)
    plain(torch.ones(2, 3)).sum().backward()
    assert seen == [0]
    assert plain.one.weight.grad is not None
    assert torch.equal(flat.gradients.view(3, 3), plain.one.weight.grad)


def test_frozen_parameters_stay_out() -> None:
    model = PartlyUsed()
    model.unused.requires_grad_(False)
    assert FlatModule(model).parameters.numel() == 9 + 3 + 6 + 2
    with pytest.raises(EngineError, match="no parameters to train"):
        FlatModule(model.requires_grad_(False))


def test_other_types_are_refused() -> None:
    with pytest.raises(EngineError, match=r"'weight' is torch\.float64"):
        FlatModule(nn.Linear(2, 2).double())


def test_running_statistics_are_one_buffer() -> None:
    model = network(ResnetSpec(n=1))
    before = {name: value.clone() for name, value in model.named_buffers()}
    buffers = FlatBuffers(model)
    assert buffers.flat.numel() == sum(v.numel() for n, v in before.items() if "running" in n)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(name.endswith("num_batches_tracked") for name in buffers.others)
    model(images()[0])
    parts = [v.flatten() for n, v in model.named_buffers() if "running" in n]
    assert torch.equal(buffers.flat, torch.cat(parts))
    assert all(int(count) == 1 for count in buffers.others.values())
    buffers.flat.fill_(0.5)
    assert model.get_buffer("norm.running_mean").eq(0.5).all()


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(3))
        self.register_buffer("table", torch.ones(4), persistent=False)

    def forward(self) -> None:
        self.level = self.level + 1


def test_a_replaced_buffer_is_brought_back() -> None:
    model = Replacing()
    buffers = FlatBuffers(model)
    model()
    assert torch.equal(buffers.flat, torch.ones(3))
    buffers.flat.fill_(4.0)
    assert torch.equal(model.level, torch.full((3,), 4.0))
