"""Low-rank exchange of gradients: what it sends, keeps back, and makes up for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from phalanx.comm.base import Collective
from phalanx.engine.replica import Replica
from phalanx.spec.compression import PowerSgdSpec
from phalanx.spec.loss import LossSpec
from phalanx.strategy.exchange.powersgd import PowerSgdExchange, orthonormalise
from support.ranks import run_ranks

ROWS, COLUMNS = 40, 60


def make(group: Collective, rank: int) -> tuple[Replica, PowerSgdExchange]:
    torch.manual_seed(0)
    replica = Replica(nn.Linear(COLUMNS, ROWS), loss=LossSpec(), optimizer=None)
    return replica, PowerSgdExchange(PowerSgdSpec(rank=rank), replica, group)


def exchange(replica: Replica, by: PowerSgdExchange, gradient: Tensor) -> Tensor:
    replica.gradients.copy_(gradient)
    for index in range(len(replica.buckets)):
        by.start(index)
    by.finish()
    return replica.gradients.clone()


def gradients(rank: int, steps: int) -> Tensor:
    """A gradient per step: a steady part of rank two, and noise of this worker's own."""
    steady = torch.Generator().manual_seed(7)
    left, right = (torch.randn(size, 2, generator=steady) for size in (ROWS, COLUMNS))
    own = torch.Generator().manual_seed(rank + 1)
    weights = (left @ right.T).reshape(-1)
    matrix = weights + 0.1 * torch.randn(steps, ROWS * COLUMNS, generator=own)
    return torch.cat([matrix, torch.randn(steps, ROWS, generator=own)], dim=1)


def test_a_gradient_of_low_rank_comes_through_whole() -> None:
    def body(group: Collective) -> Tensor:
        replica, by = make(group, rank=2)
        steady = gradients(0, 1)[0]
        steady[: ROWS * COLUMNS] = gradients(0, 400)[:, : ROWS * COLUMNS].mean(0)
        u, s, v = torch.linalg.svd(steady[: ROWS * COLUMNS].view(ROWS, COLUMNS))
        steady[: ROWS * COLUMNS] = (u[:, :2] * s[:2] @ v[:2]).reshape(-1)
        for _ in range(3):
            found = exchange(replica, by, steady)
        return found / 2 - steady

    for difference in run_ranks(2, body):
        assert difference.abs().max() < 1e-3


def test_over_many_steps_nothing_is_lost_but_one_residual() -> None:
    """Sent so far plus the residuals of all workers are the sum of all gradients."""
    steps, size = 30, 3

    def body(group: Collective) -> tuple[Tensor, Tensor, Tensor]:
        replica, by = make(group, rank=1)
        own = gradients(group.rank, steps)
        sent = sum((exchange(replica, by, one) for one in own), torch.zeros(own.shape[1]))
        return sent, by.kept["residual"].clone(), own.sum(0)

    results = run_ranks(size, body)
    whole = sum(own for _, _, own in results)
    kept = sum(residual for _, residual, _ in results)
    for sent, _, _ in results:
        torch.testing.assert_close(sent + kept, whole, atol=1e-2, rtol=1e-4)


def test_bytes_are_those_of_factors_and_of_what_is_not_factored() -> None:
    def body(group: Collective) -> tuple[int, int]:
        replica, by = make(group, rank=2)
        before = group.sent_bytes
        exchange(replica, by, gradients(group.rank, 1)[0])
        return group.sent_bytes - before, replica.gradients.nbytes

    for sent, whole in run_ranks(2, body):
        # Between two workers a ring sends the size of the tensor once.
        assert sent == 4 * (2 * (ROWS + COLUMNS) + ROWS)
        assert sent < whole / 8


def test_directions_that_die_are_drawn_anew() -> None:
    """Gradients of zero for a while, as of a layer that is not reached, do not end its training."""

    def body(group: Collective) -> Tensor:
        replica, by = make(group, rank=2)
        exchange(replica, by, torch.zeros_like(replica.gradients))
        for _ in range(4):
            found = exchange(replica, by, gradients(0, 1)[0])
        return found

    for found in run_ranks(2, body):
        assert found[: ROWS * COLUMNS].norm() > 1.0


def test_state_goes_on_in_a_group_of_any_size() -> None:
    def body(group: Collective) -> tuple[dict[str, Tensor], Tensor]:
        replica, by = make(group, rank=1)
        for one in gradients(group.rank, 3):
            exchange(replica, by, one)
        state = {name: tensor.clone() for name, tensor in by.export_state().items()}
        return state, exchange(replica, by, gradients(group.rank, 4)[3])

    results = run_ranks(2, body)
    state = results[0][0]

    def resumed(group: Collective) -> Tensor:
        replica, by = make(group, rank=1)
        by.import_state(state)
        return exchange(replica, by, gradients(group.rank, 4)[3])

    for found, (_, expected) in zip(run_ranks(2, resumed), results, strict=True):
        assert torch.equal(found, expected)

    def alone(group: Collective) -> Tensor:
        _, by = make(group, rank=1)
        by.import_state(state)
        return by.kept["residual"]

    assert torch.equal(run_ranks(1, alone)[0], state["residual"].sum(0))


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**31))
def test_columns_become_orthonormal_or_zero(rows: int, columns: int, seed: int) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    orthonormalise(matrix)
    products = matrix.T @ matrix
    lengths = products.diag()
    assert bool((((lengths - 1).abs() < 1e-4) | (lengths == 0)).all())
    assert float((products - torch.diag(lengths)).abs().max()) < 1e-3
    assert int((lengths > 0.5).sum()) <= rows


@pytest.mark.parametrize("rank", [1, 4])
def test_a_matrix_that_factors_would_not_halve_is_sent_as_it_is(rank: int) -> None:
    def body(group: Collective) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        replica = Replica(nn.Linear(4 * rank - 1, 4 * rank - 1), loss=LossSpec(), optimizer=None)
        by = PowerSgdExchange(PowerSgdSpec(rank=rank), replica, group)
        gradient = torch.randn(
            replica.gradients.numel(), generator=torch.Generator().manual_seed(group.rank)
        )
        return exchange(replica, by, gradient), gradient

    results = run_ranks(2, body)
    for found, _ in results:
        assert torch.equal(found, results[0][1] + results[1][1])
