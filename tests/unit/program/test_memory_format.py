"""Convolutions of a script's model compute channels-last, and the script does not notice."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phalanx.errors import SpecError
from phalanx.program.memory_format import compute_channels_last
from phalanx.program.session import ScriptSession
from phalanx.program.standalone import StandaloneDriver

STRIDES: list[tuple[int, ...]] = []


class Net(nn.Module):
    """Two convolutions and a head, which is given."""

    def __init__(self, head: Callable[[nn.Module, Tensor], Tensor], channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(channels, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 3)
        self.linear = nn.Linear(6 * 4 * 4, 2)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.norm(self.first(x)))))
        STRIDES.append(x.stride())
        return self.head(self, x)


def flat(net: nn.Module, x: Tensor) -> Tensor:
    return net.linear(x.flatten(1))


def viewed(net: nn.Module, x: Tensor) -> Tensor:
    return net.linear(x.view(len(x), -1))


def picture(net: nn.Module, x: Tensor) -> Tensor:
    return x


def pair(net: nn.Module, x: Tensor) -> Tensor:
    return x, x.mean()  # type: ignore[return-value]


def kept(net: nn.Module, x: Tensor) -> Tensor:
    net.features = x
    return flat(net, x)


def is_last(strides: tuple[int, ...]) -> bool:
    return strides[1] == 1


def steps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Make two passes; return gradients, statistics, and the next random number."""
    torch.manual_seed(1)
    for _ in range(2):
        output = model(x)
        (output[0] if isinstance(output, tuple) else output).square().mean().backward()
    return [
        *(p.grad for p in model.parameters() if p.grad is not None),
        *model.buffers(),
        torch.rand(1),
    ]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("head", "used"),
    [(flat, True), (picture, True), (viewed, False), (pair, False), (kept, False)],
)
def test_it_is_used_where_nobody_sees_it(
    head: Callable[[nn.Module, Tensor], Tensor], used: bool, channels: int
) -> None:
    x = torch.rand(5, channels, 8, 8)
    usual, ours = Net(head, channels), Net(head, channels)
    compute_channels_last(ours)
    expected = steps(usual, x)
    found = steps(ours, x)
    assert is_last(STRIDES[-1]) is used
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert ours.first.weight.is_contiguous()
    if head is picture:
        assert ours(x).stride() == usual(x).stride()


def test_other_sizes_of_a_batch_are_not_tried_again_and_evaluation_stays_as_it_is() -> None:
    model = Net(flat)
    compute_channels_last(model)
    model(torch.rand(5, 3, 8, 8))
    STRIDES.clear()
    model(torch.rand(2, 3, 8, 8))
    with torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    model.first(torch.rand(2, 3, 8, 8, requires_grad=True))
    assert list(map(is_last, STRIDES)) == [True, False]


def test_hooks_of_the_script_are_not_called_more_often() -> None:
    model, calls = Net(flat), []
    model.second.register_forward_hook(lambda *_: calls.append(1))
    compute_channels_last(model)
    model(torch.rand(5, 3, 8, 8))
    assert len(calls) == 1
    assert not is_last(STRIDES[-1])


def test_the_trial_does_not_write_to_arguments() -> None:
    model = nn.Sequential(Doubled(), Net(flat))
    compute_channels_last(model)
    x = torch.ones(5, 3, 8, 8)
    model(x)
    assert is_last(STRIDES[-1])
    assert torch.equal(x, torch.full_like(x, 2.0))


class Doubled(nn.Module):
    """Write to what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


def test_a_branch_that_was_not_tried_fails_with_advice() -> None:
    def head(net: nn.Module, x: Tensor) -> Tensor:
        return viewed(net, x) if net.linear.bias[0] > 50 else flat(net, x)

    model = Net(head)
    compute_channels_last(model)
    model(torch.rand(5, 3, 8, 8))
    with torch.no_grad():
        model.linear.bias[0] = 100
    with pytest.raises(RuntimeError, match="memory_format='preserve'"):
        model(torch.rand(5, 3, 8, 8))


def test_copies_and_pickles_of_the_model_work_by_themselves() -> None:
    model = Net(flat)
    compute_channels_last(model)
    x = torch.rand(5, 3, 8, 8)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), expected)
        assert is_last(STRIDES[-1])
        del model.head
        torch.testing.assert_close(other(x), expected)
        model.head = flat


def test_a_network_without_convolutions_gets_no_hook() -> None:
    model = nn.Linear(2, 2)
    compute_channels_last(model)
    assert not model._forward_pre_hooks


def test_another_format_is_refused_in_one_sentence() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SpecError, match="'auto' or 'preserve'"):
        ScriptSession(StandaloneDriver()).setup(model, optimizer, memory_format="last")  # type: ignore[arg-type]
