"""Updates whose batches are drawn before they are used: each backward pass counts for its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch

from phalanx.program.source import MicroBatch
from phalanx.program.turn import LossForm, LossScale, ScriptBatch, Turn, loss_samples


def micro(rows: int, whole: int, tokens: int | None = None) -> MicroBatch:
    """Rows of one of two workers; one without any gets a stand-in."""
    return MicroBatch(torch.ones(max(rows, 1), tokens or 1), rows, whole)


def update(*parts: MicroBatch) -> ScriptBatch:
    count = sum(one.global_rows for one in parts)
    return ScriptBatch.of(parts, count=count, offset=0, epoch=0, step=0)


def scales(
    loss: LossForm, *batches: ScriptBatch, count: Callable[[object], object] | None = None
) -> list[Callable[[int], float]]:
    """The weights of each worker; the counts of all are added before any is asked for."""
    sums = [torch.zeros(0)]

    def total(own: torch.Tensor) -> Callable[[], torch.Tensor]:
        sums[0] = own.clone() if not sums[0].numel() else sums[0] + own
        return lambda: sums[0]

    scale = LossScale(loss=loss, count=count, total=total)
    return [scale.weights(one) for one in batches]


def turn() -> Turn:
    parts = [micro(1, 2), micro(1, 2)]
    weigh = {0: 0.0, 1: 1.0}.__getitem__
    return Turn(step=0, waiting=deque(parts), weigh=weigh, samples=weigh)


def test_a_pass_belongs_to_the_next_batch_though_more_are_drawn() -> None:
    ahead = turn()
    ahead.draw()
    ahead.draw()
    assert [ahead.begin_pass(1), ahead.begin_pass(1)] == [0, 1]
    twice = turn()
    twice.draw()
    twice.draw()
    assert [twice.begin_pass(2) for _ in range(4)] == [0, 0, 1, 1]


def test_without_a_number_of_passes_they_belong_to_the_last_batch() -> None:
    several = turn()
    several.draw()
    assert [several.begin_pass(None), several.begin_pass(None)] == [0, 0]
    several.draw()
    assert several.begin_pass(None) == 1


def test_losses_divided_by_the_count_of_the_update_are_weighed_by_it() -> None:
    # Two batches: 3 and 1 rows of the first, 2 and none of the second.
    own, other = update(micro(3, 4, 5), micro(2, 2, 1)), update(micro(1, 4, 7), micro(0, 2, 9))
    tokens = [3 * 5 + 2 * 1, 1 * 7]
    first, second = scales("update_mean", own, other, count=lambda batch: torch.numel(batch))
    assert first(0) == first(1) == pytest.approx(tokens[0] / sum(tokens))
    # The script has divided by its stand-in's tokens as well.
    assert second(0) == pytest.approx((7 + 9) / sum(tokens))
    assert second(1) == 0.0


def test_a_worker_that_updates_alone_is_weighed_by_its_own_count() -> None:
    batch = update(micro(2, 2, 3), micro(0, 0, 3))
    (weigh,) = scales("update_mean", batch)
    assert (weigh(0), weigh(1)) == (pytest.approx(3 / 2), 0.0)


@pytest.mark.parametrize(("loss", "rows"), [("mean", 6), ("sum", 1), ("update_mean", 4)])
def test_the_recorded_loss_is_that_of_the_update(loss: LossForm, rows: int) -> None:
    samples = loss_samples(loss, update(micro(3, 4), micro(1, 2)))
    assert samples(0) == rows
