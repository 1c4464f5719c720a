"""What every collective promises, over each implementation and several sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.observe.process import stream_bytes
from support.ranks import LIMIT_S, over_gloo, over_mesh
from support.ranks import run_ranks as run_over

SIZES = [1, 2, 3]
RunRanks = Callable[..., list[Any]]


GROUPS = {
    "gloo": over_gloo,
    "mesh, plain": partial(over_mesh, encrypt="never"),
    "mesh, encrypted": partial(over_mesh, encrypt="always"),
}


@pytest.fixture(params=GROUPS)
def run_ranks(request: pytest.FixtureRequest) -> RunRanks:
    return partial(run_over, group=GROUPS[request.param])


@pytest.mark.parametrize("size", SIZES)
class TestCollective:
    def test_sum_min_max(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> list[float]:
            found = []
            for reduction in ("sum", "min", "max"):
                tensor = torch.tensor([float(group.rank + 1)])
                group.all_reduce(tensor, reduction)
                found.append(tensor.item())
            return found

        expected = [sum(range(1, size + 1)), 1.0, float(size)]
        assert run_ranks(size, body) == [expected] * size

    def test_rows_go_to_the_worker_of_their_rank(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> list[list[float]]:
            rows = torch.tensor([[10.0 * group.rank + to] * 3 for to in range(size)])
            received: list[list[float]] = group.all_to_all(rows).tolist()
            return received

        for rank, rows in enumerate(run_ranks(size, body)):
            assert rows == [[10.0 * source + rank] * 3 for source in range(size)]

    def test_bytes_sent_beside_it_are_counted(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> int:
            before = group.sent_bytes
            group.count_beside(1_000)
            return group.sent_bytes - before

        assert run_ranks(size, body) == [1_000] * size

    def test_many_exchanges_at_once_do_not_mix(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> list[float]:
            tensors = [torch.full((1000,), float(i)) for i in range(20)]
            pending = [group.start_all_reduce(tensor) for tensor in tensors]
            for one in pending:
                one.wait()
            return [tensor[-1].item() for tensor in tensors]

        assert run_ranks(size, body)[-1] == [float(i * size) for i in range(20)]

    def test_an_exchange_is_done_once_it_has_been_waited_for(
        self, run_ranks: RunRanks, size: int
    ) -> None:
        def body(group: Collective) -> bool:
            pending = group.start_all_reduce(torch.zeros(1000))
            pending.wait()
            return pending.is_done()

        assert run_ranks(size, body) == [True] * size

    def test_broadcast_from_any_rank(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> float:
            tensor = torch.tensor([float(group.rank)])
            group.broadcast(tensor, source=size - 1)
            return tensor.item()

        assert run_ranks(size, body) == [float(size - 1)] * size

    def test_gather_by_rank(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> list[float]:
            return [part.item() for part in group.all_gather(torch.tensor([group.rank + 0.5]))]

        assert run_ranks(size, body) == [[rank + 0.5 for rank in range(size)]] * size

    def test_every_row_reaches_its_worker(self, run_ranks: RunRanks, size: int) -> None:
        def body(group: Collective) -> list[float]:
            rows = torch.arange(size).view(size, 1).repeat(1, 70_000) + 10.0 * group.rank
            received = group.all_to_all(rows)
            assert torch.equal(received, received[:, :1].expand_as(received))
            return received[:, 0].tolist()

        expected = [[10.0 * source + rank for source in range(size)] for rank in range(size)]
        assert run_ranks(size, body) == expected

    def test_sent_bytes_are_what_the_kernel_counted(self, run_ranks: RunRanks, size: int) -> None:
        """All ranks are threads of this process, so the kernel's count is of all of them."""
        counted = threading.Barrier(size)

        def body(group: Collective) -> tuple[int, int]:
            # Nobody sends before everybody has read the counters, nor reads before all is sent.
            group.all_reduce(torch.zeros(1))
            before, said = stream_bytes(), group.sent_bytes
            group.all_reduce(torch.zeros(1))
            group.all_reduce(torch.zeros(1_200_000))
            said = group.sent_bytes - said
            group.all_reduce(torch.zeros(1))
            after = stream_bytes()
            # Nobody closes its connections before everybody has counted them.
            counted.wait(LIMIT_S)
            assert before is not None
            assert after is not None
            return after - before, said

        found = run_ranks(size, body)
        said = sum(own for _, own in found)
        assert found[0][0] == pytest.approx(said, rel=0.02)
        assert (said > 0) == (size > 1)

    def test_what_has_one_tag_arrives_in_the_order_it_was_sent(
        self, run_ranks: RunRanks, size: int
    ) -> None:
        def body(group: Collective) -> list[float]:
            if size == 1:
                with pytest.raises(ValueError, match="a group of one"):
                    group.start_send(torch.zeros(1), target=0, tag=0)
                return []
            if group.rank == 0:
                sent = [
                    group.start_send(torch.full((1000,), float(n)), target=1, tag=n % 2)
                    for n in range(6)
                ]
                for one in sent:
                    one.wait()
                return []
            if group.rank == 1:
                found = {n: torch.empty(1000) for n in (1, 0, 3, 2, 5, 4)}
                for n, tensor in found.items():
                    group.start_receive(tensor, source=0, tag=n % 2).wait()
                return [found[n][-1].item() for n in range(6)]
            return []

        found = run_ranks(size, body)
        if size > 1:
            assert found[1] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
