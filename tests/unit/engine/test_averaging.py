"""The moving average of weights: by hand, over slices, through saving, and in place of them."""

import pytest
import torch
from torch import nn

from phalanx.engine.averaging import AVERAGE, average_in
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.replica import Replica
from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec
from phalanx.spec.optimize import SgdSpec

SPEC = SgdSpec(momentum=0.9, ema=0.75)


def test_the_average_begins_with_the_first_update_and_decays() -> None:
    parameters = torch.zeros(3)
    optimizer = FlatOptimizer(SgdSpec(ema=0.75), parameters)
    assert average_in(optimizer.state()) is None
    expected = None
    for _ in range(4):
        optimizer.step(torch.ones(3), 0.5)
        expected = parameters if expected is None else 0.75 * expected + 0.25 * parameters
        expected = expected.clone()
        found = average_in(optimizer.state())
        assert found is not None
        assert torch.allclose(found, expected)


def test_slices_average_as_the_whole_and_a_restored_one_goes_on() -> None:
    whole, cut, again = torch.ones(32), torch.ones(32), torch.ones(32)
    one = FlatOptimizer(SPEC, whole)
    two = [FlatOptimizer(SPEC, cut[:16]), FlatOptimizer(SPEC, cut[16:])]
    for step in range(3):
        gradient = torch.arange(32.0) * (step + 1)
        one.step(gradient.clone(), 0.1)
        two[0].step(gradient[:16].clone(), 0.1)
        two[1].step(gradient[16:].clone(), 0.1)
    averages = [optimizer.state()[AVERAGE] for optimizer in two]
    assert torch.equal(torch.cat(averages), one.state()[AVERAGE])
    assert torch.equal(one.part((16, 32))[AVERAGE], averages[1])
    other = FlatOptimizer(SPEC, again)
    again.copy_(whole)
    other.load_state({key: value.clone() for key, value in one.state().items()})
    for optimizer in (one, other):
        optimizer.step(torch.ones(32), 0.1)
    assert torch.equal(other.state()[AVERAGE], one.state()[AVERAGE])


def test_a_state_without_an_average_is_refused() -> None:
    plain = FlatOptimizer(SgdSpec(momentum=0.9), torch.ones(4))
    with pytest.raises(EngineError, match="no average of weights"):
        FlatOptimizer(SPEC, torch.ones(4)).load_state(plain.state())


def test_a_replica_holds_the_average_only_for_a_while() -> None:
    replica = Replica(nn.Linear(2, 2), loss=LossSpec(), optimizer=SPEC)
    for _ in range(2):
        replica.gradients.fill_(1.0)
        replica.apply(0.1)
    own = replica.parameters.clone()
    with replica.averaged():
        assert not torch.equal(replica.parameters, own)
    assert torch.equal(replica.parameters, own)
