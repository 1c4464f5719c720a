"""Losses that count tokens: shares and passes add up to the gradient of the whole batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from phalanx.data.fields import field_layout, pack
from phalanx.data.stream import Batch
from phalanx.engine.replica import Replica
from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec


class Tagger(nn.Module):
    """Label every token, with a mask as a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.out(self.table(ids) * mask.unsqueeze(-1))}


def make_replica(passes: int = 1) -> Replica:
    torch.manual_seed(3)
    return Replica(Tagger(), loss=LossSpec(), optimizer=None, passes=passes)


def make_batch(count: int = 10) -> Batch:
    draw = np.random.default_rng(4)
    columns = {"ids": draw.integers(0, 9, (count, 6)), "mask": draw.random((count, 6)) < 0.7}
    targets = np.where(columns["mask"], draw.integers(0, 3, (count, 6)), -100)
    fields = field_layout(columns)
    return Batch(
        inputs=pack(columns, fields),
        targets=targets,
        indices=np.arange(count),
        global_count=count,
        global_offset=0,
        epoch=0,
        step=0,
        fields=fields,
    )


def cut(batch: Batch, first: int, last: int) -> Batch:
    rows = slice(first, last)
    return replace(
        batch,
        inputs=batch.inputs[rows],
        targets=batch.targets[rows],
        indices=batch.indices[rows],
    )


def test_the_whole_batch_gives_the_mean_over_what_counts() -> None:
    batch, replica = make_batch(), make_replica()
    result = replica.forward_backward(batch, step=0)
    assert result.weight == (batch.targets != -100).sum() != batch.targets.size
    gradients = replica.gradients.clone()
    replica.module.zero_grad(set_to_none=False)
    ids, mask = (torch.from_numpy(batch_column) for batch_column in _columns(batch))
    logits = replica.module(ids, mask)["logits"]
    nn.functional.cross_entropy(logits.transpose(1, 2), torch.from_numpy(batch.targets)).backward()
    assert torch.allclose(gradients, replica.gradients, atol=1e-6)


def _columns(batch: Batch):
    from phalanx.data.fields import unpack

    return unpack(batch.inputs, batch.fields).values()


@pytest.mark.parametrize("passes", [2, 3, 20])
def test_passes_change_nothing_but_memory(passes: int) -> None:
    whole, parts = make_replica(), make_replica(passes)
    batch = make_batch()
    one, several = (r.forward_backward(batch, step=0) for r in (whole, parts))
    assert several.loss_sum == pytest.approx(one.loss_sum, rel=1e-6)
    assert (several.num_correct, several.weight) == (one.num_correct, one.weight)
    assert torch.allclose(whole.gradients, parts.gradients, atol=1e-6)


def test_buckets_are_reported_once_in_the_last_pass() -> None:
    replica, seen = make_replica(3), []
    replica.forward_backward(cut(make_batch(), 0, 7), seen.append, step=0)
    assert seen == list(range(len(replica.buckets)))


def test_unequal_shares_add_up_by_their_weights() -> None:
    batch, whole = make_batch(), make_replica()
    whole.forward_backward(batch, step=0)
    total, weight = torch.zeros_like(whole.gradients), 0.0
    for first, last in ((0, 1), (1, 8), (8, 8), (8, 10)):
        share = make_replica()
        share.forward_backward(cut(batch, first, last), step=0)
        total += share.gradients
        weight += share.gradient_weight
    assert torch.allclose(total * (10 / weight), whole.gradients, atol=1e-6)


def test_a_network_that_takes_other_inputs_is_named_with_their_shapes() -> None:
    replica = Replica(nn.Linear(6, 3), loss=LossSpec(), optimizer=None)
    with pytest.raises(EngineError, match=r"failed on inputs 'ids' \(10, 6\), 'mask' \(10, 6\)"):
        replica.forward_backward(make_batch(), step=0)
