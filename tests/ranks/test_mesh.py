"""Groups over links of their own: bits, order, failures that name somebody, nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import torch

from phalanx.comm import group_traffic
from phalanx.comm.mesh import MeshCollective
from phalanx.errors import PeerError, TimeoutExpired
from phalanx.wire.deadline import Deadline
from support.ranks import LIMIT_S, CardsByRelay, over_mesh, run_ranks
from support.waiting import wait_until

ENCRYPT = ["never", "always"]


def outcome(action: Callable[[], object]) -> PeerError | None:
    try:
        action()
    except PeerError as error:
        return error
    return None


def made_up(rank: int, number: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * rank + number)
    return (torch.randn(length, generator=source) * 100).to(dtype)


@pytest.mark.parametrize("encrypt", ENCRYPT)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_are_those_of_a_loop_over_ranks_to_the_bit(size: int, encrypt: str) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    cases = [(n, dtype) for n in (0, 1, 17, 5000, 300_001) for dtype in dtypes]

    def body(group: MeshCollective) -> list[torch.Tensor]:
        tensors = [made_up(group.rank, i, *case) for i, case in enumerate(cases)]
        for one in [group.start_all_reduce(tensor) for tensor in tensors]:
            one.wait()
        return tensors

    found = run_ranks(size, body, partial(over_mesh, encrypt=encrypt))
    for i, case in enumerate(cases):
        expected = made_up(0, i, *case)
        for rank in range(1, size):
            expected = expected + made_up(rank, i, *case)
        for tensors in found:
            assert torch.equal(tensors[i], expected), case


@pytest.mark.parametrize("size", [2, 4])
def test_broadcast_and_gather_of_any_length(size: int) -> None:
    lengths = (0, 1, 33, 400_000)

    def body(group: MeshCollective) -> bool:
        for length in lengths:
            for source in range(size):
                tensor = made_up(group.rank, length, length, torch.float32)
                group.broadcast(tensor, source=source)
                assert torch.equal(tensor, made_up(source, length, length, torch.float32))
            parts = group.all_gather(made_up(group.rank, 1, length, torch.float32))
            for rank, part in enumerate(parts):
                assert torch.equal(part, made_up(rank, 1, length, torch.float32))
        return True

    assert run_ranks(size, body, over_mesh) == [True] * size


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["nothing is held", "1 MiB is held"])
def test_a_member_that_is_behind_holds_the_others_back_and_loses_nothing(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_traffic, "MOST_EARLY_BYTES", limit)
    ahead = threading.Event()

    def body(group: MeshCollective) -> list[float]:
        tensors = [torch.full((300_000,), float(i)) for i in range(12)]
        if group.rank == 1:
            assert ahead.wait(LIMIT_S)
        pending = [group.start_all_reduce(tensor) for tensor in tensors]
        ahead.set()
        for one in pending:
            one.wait()
        return [tensor[-1].item() for tensor in tensors]

    assert run_ranks(2, body, over_mesh) == [[2.0 * i for i in range(12)]] * 2


def test_a_message_overtakes_an_exchange_that_its_receiver_has_not_begun() -> None:
    def body(group: MeshCollective) -> float:
        gradient, note = torch.ones(200_000), torch.full((3,), 7.0)
        if group.rank == 0:
            pending = group.start_all_reduce(gradient)
            group.start_send(note, target=1, tag=5).wait()
            pending.wait()
        else:
            note.zero_()
            group.start_receive(note, source=0, tag=5).wait()
            group.all_reduce(gradient)
        return note[0].item() + gradient[-1].item()

    assert run_ranks(2, body, over_mesh) == [9.0, 9.0]


def test_another_thread_breaks_an_exchange_off_at_once_and_for_good() -> None:
    aborted = threading.Event()

    def body(group: MeshCollective) -> list[str]:
        tensor = torch.ones(500_000)
        if group.rank == 1:
            # It never begins, and learns of the end the next time it wants something.
            assert aborted.wait(LIMIT_S)
            return [str(outcome(lambda: group.all_reduce(torch.ones(500_000))))]
        pending = group.start_all_reduce(tensor)
        threading.Thread(target=group.abort, args=("the controller said so",)).start()
        errors = [outcome(pending.wait), outcome(lambda: group.start_all_reduce(torch.ones(1)))]
        aborted.set()
        assert torch.equal(tensor, torch.ones(500_000))
        return [str(error) for error in errors]

    first, second = run_ranks(2, body, over_mesh)
    assert first == ["the controller said so"] * 2
    assert "worker-0" in second[0]


def test_the_one_that_all_wait_for_is_named_by_all() -> None:
    over = threading.Barrier(4)

    def body(group: MeshCollective) -> tuple[str, ...]:
        if group.rank == 2:
            over.wait(LIMIT_S)
            return ()
        error = outcome(lambda: group.all_reduce(torch.ones(200_000)))
        over.wait(LIMIT_S)
        assert error is not None
        assert "worker-2" in str(error)
        return tuple(error.facts["suspects"])

    found = run_ranks(4, body, partial(over_mesh, exchange_s=0.5))
    assert found == [("worker-2",), ("worker-2",), (), ("worker-2",)]


def test_a_deadline_begins_anew_while_anything_moves() -> None:
    """The exchange is begun by one member long before the other one, while messages pass."""
    limit_s = 0.5

    def body(group: MeshCollective) -> float:
        tensor, going = torch.ones(100_000), torch.ones(1)
        if group.rank == 1:
            while going.item():
                group.start_receive(going, source=0, tag=1).wait()
            group.all_reduce(tensor)
            return tensor[0].item()
        pending = group.start_all_reduce(tensor)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pending.wait)
            deadline = Deadline.after(4 * limit_s, "messages")
            while not deadline.expired:
                group.start_send(going, target=1, tag=1).wait()
            group.start_send(torch.zeros(1), target=1, tag=1).wait()
            waiting.result(LIMIT_S)
        return tensor[0].item()

    assert run_ranks(2, body, partial(over_mesh, exchange_s=limit_s)) == [2.0, 2.0]


def test_a_cut_link_is_named_by_both_its_ends_and_ends_the_exchange_for_all() -> None:
    with ExitStack() as stack:
        # Of what worker-1 and worker-2 send to worker-0; one of them is cut off half way.
        channel = CardsByRelay(stack, cut_after=600_000)
        over = threading.Barrier(3)

        def body(group: MeshCollective) -> tuple[str, ...]:
            error = outcome(lambda: group.all_reduce(torch.ones(1_000_000)))
            over.wait(LIMIT_S)
            assert error is not None
            return tuple(error.facts["suspects"])

        found = run_ranks(3, body, partial(over_mesh, channel=channel))
    lost = found[0][0]
    assert lost in ("worker-1", "worker-2")
    assert found[int(lost[-1])][0] == "worker-0"
    third = found[3 - int(lost[-1])]
    assert set(third) <= {"worker-0", lost}
    assert third


def test_members_that_disagree_about_a_size_are_told() -> None:
    over = threading.Barrier(2)

    def body(group: MeshCollective) -> str:
        error = outcome(lambda: group.all_reduce(torch.ones(40_000 * (1 + group.rank))))
        over.wait(LIMIT_S)
        return str(error)

    assert any("a tensor's size differs" in text for text in run_ranks(2, body, over_mesh))


def test_a_member_that_never_comes_is_named() -> None:
    with pytest.raises(TimeoutExpired, match="worker-1 to join"):
        over_mesh(2, start_s=0.2)(0)


def test_groups_leave_neither_threads_nor_descriptors_behind() -> None:
    def form(times: int) -> tuple[int, int]:
        for _ in range(times):
            run_ranks(3, lambda group: group.all_reduce(torch.ones(10_000)), over_mesh)
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = form(2)
    form(20)
    wait_until(lambda: form(1) <= before, "descriptors and threads to be given back")


@pytest.mark.parametrize("encrypt", ENCRYPT)
def test_what_passes_on_the_wire_can_be_read_only_where_it_is_plain(encrypt: str) -> None:
    pattern = torch.frombuffer(bytearray(b"PARAMETERS-IN-THE-CLEAR!" * 4000), dtype=torch.float32)
    with ExitStack() as stack:
        channel = CardsByRelay(stack)

        def body(group: MeshCollective) -> bool:
            tensor = pattern.clone() if group.rank == 1 else torch.zeros_like(pattern)
            group.all_reduce(tensor)
            assert torch.equal(tensor, pattern)
            group.broadcast(tensor, source=1)
            group.all_gather(tensor[:6].clone())
            return True

        run_ranks(2, body, partial(over_mesh, encrypt=encrypt, channel=channel))
        assert channel.relay is not None
        passed = b"".join(map(bytes, channel.relay.recorded))
    assert len(passed) > pattern.nbytes
    assert (b"PARAMETERS-IN-THE-CLEAR!" in passed) == (encrypt == "never")
    assert b"worker-" not in passed
