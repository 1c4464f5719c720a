"""All-reduce along every topology: sums, bits, encryption, and who is named when one is missing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.comm.exchanges import StagingBuffers
from phalanx.comm.frames import FrameHeader
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.tree_reduction import TreeReduction
from phalanx.errors import PeerError, SpecError
from phalanx.spec.topology import TOPOLOGIES
from phalanx.topology.sum_tree import ROOT, SumTree, plan_trees
from support.ranks import LIMIT_S, PublishedCards, run_ranks

NAMES = TOPOLOGIES.built_in


def over_machines(size: int, *, per_machine: int, **given: Any) -> Callable[[int], MeshCollective]:
    """Members of which several are at one address, as if it were one machine."""
    channel, names = PublishedCards(), [f"worker-{rank}" for rank in range(size)]
    fields = {"start_s": LIMIT_S, "exchange_s": LIMIT_S} | given

    def make(rank: int) -> MeshCollective:
        host = f"127.0.0.{1 + rank // per_machine}"
        return MeshCollective(channel, group="g", members=names, rank=rank, host=host, **fields)

    return make


def made_up(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    source = torch.Generator().manual_seed(rank)
    return (torch.randn(length, generator=source) * 100).to(dtype)


def summed_along(trees: Sequence[SumTree], parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum as the trees describe it, without any exchange."""
    length = 16 * math.ceil(parts[0].numel() / len(trees) / 16)

    def add(tree: SumTree, rank: int, where: slice) -> torch.Tensor:
        own = {rank: parts[rank][where]}
        own |= {child: add(tree, child, where) for child in tree.children[rank]}
        first, *others = (own[one] for one in sorted(own))
        for other in others:
            first = first + other
        return first

    return torch.cat(
        [
            add(tree, tree.parents.index(ROOT), slice(i * length, (i + 1) * length))
            for i, tree in enumerate(trees)
        ]
    )


@pytest.mark.parametrize(
    ("size", "encrypt"),
    [
        (3, "never"),
        (5, "auto"),
        *(
            pytest.param(size, encrypt, marks=pytest.mark.full)
            for size in (2, 4, 6, 7, 8)
            for encrypt in ("never", "always")
        ),
    ],
)
def test_sums_are_those_of_the_trees_to_the_bit_on_all_members(size: int, encrypt: str) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    cases = [(10_003, dtype) for dtype in dtypes] + [(300_001, torch.float32)]

    def body(group: MeshCollective) -> list[list[torch.Tensor]]:
        found = []
        for name in NAMES:
            group.use_topology(name)
            tensors = [made_up(group.rank, *case) for case in cases]
            for one in [group.start_all_reduce(tensor) for tensor in tensors]:
                one.wait()
            found.append(tensors)
        return found

    found = run_ranks(size, body, partial(over_machines, per_machine=2, encrypt=encrypt))
    machines = [rank // 2 for rank in range(size)]
    for i, name in enumerate(NAMES):
        trees = plan_trees(name, machines)
        for j, case in enumerate(cases):
            parts = [made_up(rank, *case) for rank in range(size)]
            expected = summed_along(trees, parts)
            assert all(torch.equal(one[i][j], expected) for one in found), (name, case)
            if case[1] is torch.float32:
                exact = torch.stack(parts).double()
                rounding = size * torch.finfo(torch.float32).eps * exact.abs().sum(0)
                assert bool(((expected - exact.sum(0)).abs() <= rounding).all())


def test_min_max_and_a_change_of_topology_between_exchanges_under_way() -> None:
    def body(group: MeshCollective) -> list[float]:
        pending, tensors = [], []
        for name in NAMES * 2:
            for reduction in ("min", "max", "sum"):
                group.use_topology(name)
                tensors.append(torch.full((10_000,), float(group.rank + 1)))
                pending.append(group.start_all_reduce(tensors[-1], reduction))  # type: ignore[arg-type]
        for one in pending:
            one.wait()
        return [tensor[-1].item() for tensor in tensors]

    expected = [1.0, 5.0, 15.0] * 2 * len(NAMES)
    assert run_ranks(5, body, partial(over_machines, per_machine=3)) == [expected] * 5


@pytest.mark.parametrize("name", NAMES)
def test_the_one_that_has_not_come_is_named_by_all(name: str) -> None:
    size, over = 6, threading.Barrier(6)

    def body(group: MeshCollective) -> tuple[str, ...]:
        group.use_topology(name)
        if group.rank == 3:
            over.wait(LIMIT_S)
            return ()
        with pytest.raises(PeerError, match="worker-3") as caught:
            group.all_reduce(torch.ones(50_000))
        over.wait(LIMIT_S)
        return tuple(caught.value.facts["suspects"])

    found = run_ranks(size, body, partial(over_machines, per_machine=2, exchange_s=0.5))
    assert found == [() if rank == 3 else ("worker-3",) for rank in range(size)]


@pytest.mark.parametrize("name", NAMES)
def test_one_that_leaves_ends_the_exchange_for_all_at_once(name: str) -> None:
    """Nobody's deadline passes within the time that the ranks are given."""
    size, over = 6, threading.Barrier(6)

    def body(group: MeshCollective) -> tuple[str, ...]:
        group.use_topology(name)
        if group.rank == 3:
            group.close()
            over.wait(LIMIT_S)
            return ()
        with pytest.raises(PeerError, match="worker-3") as caught:
            group.all_reduce(torch.ones(50_000))
        over.wait(LIMIT_S)
        return tuple(caught.value.facts["suspects"])

    found = run_ranks(size, body, partial(over_machines, per_machine=2, exchange_s=10 * LIMIT_S))
    assert found == [() if rank == 3 else ("worker-3",) for rank in range(size)]


def test_groups_say_which_topologies_differ() -> None:
    def body(group: MeshCollective) -> tuple[str, ...]:
        with pytest.raises(SpecError, match="unknown topology 'star'"):
            group.use_topology("star")
        return group.topologies()

    assert run_ranks(4, body, partial(over_machines, per_machine=2)) == [NAMES] * 4
    assert run_ranks(4, body, partial(over_machines, per_machine=1)) == [NAMES[:-1]] * 4
    assert run_ranks(2, body, partial(over_machines, per_machine=1)) == [("direct",)] * 2


class Mail:
    """Frames between exchanges of one thread, delivered in the order that a test draws."""

    def __init__(self) -> None:
        self.exchanges: list[TreeReduction] = []
        self.links: dict[tuple[int, int], list[tuple[FrameHeader, memoryview]]] = {}
        self.left: list[Callable[[], None]] = []

    def put_of(self, rank: int) -> Callable[..., None]:
        def put(
            to: int, header: FrameHeader, payload: memoryview, left: Callable[[], None]
        ) -> None:
            # Copied at once, as into the kernel.
            queue = self.links.setdefault((rank, to), [])
            queue.append((header, memoryview(bytes(payload))))
            self.left.append(left)

        return put

    def run(self, choose: Callable[[int], int]) -> None:
        for rank, one in enumerate(self.exchanges):
            one.begin(self.put_of(rank))
        while waiting := [pair for pair, queue in self.links.items() if queue]:
            pair = waiting[choose(len(waiting))]
            header, payload = self.links[pair].pop(0)
            target = self.exchanges[pair[1]]
            target.place(pair[0], header)[:] = payload
            target.arrived(pair[0], header)
            for left in self.left:
                left()
            self.left.clear()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    size=st.integers(2, 8),
    per_machine=st.integers(1, 4),
    length=st.integers(0, 150_000),
    order=st.randoms(use_true_random=False),
)
def test_any_order_of_frames_gives_the_same_bits(
    name: str, size: int, per_machine: int, length: int, order: Any
) -> None:
    trees = plan_trees(name, [rank // per_machine for rank in range(size)])
    tensors = [made_up(rank, length, torch.float32) for rank in range(size)]
    expected = summed_along(trees, [one.clone() for one in tensors])
    mail, staging = Mail(), StagingBuffers()
    mail.exchanges = [
        TreeReduction(0, one, "sum", rank=rank, trees=trees, staging=staging)
        for rank, one in enumerate(tensors)
    ]
    mail.run(order.randrange)
    assert all(one.finished.is_set() and one.error is None for one in mail.exchanges)
    assert all(torch.equal(one, expected) for one in tensors)
