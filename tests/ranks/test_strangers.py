"""Strangers at the ports of a group get nothing, change nothing, and are counted."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import pytest
import torch
import torch.distributed as dist

from phalanx.comm import gloo_proof, link_maker
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.gloo_proof import unproven_members
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.pairing import GroupSecret, Handshake, MemberCard, MemberPair, greet, make_pairs
from phalanx.errors import PeerError, TimeoutExpired
from phalanx.wire.deadline import Deadline
from support.ranks import LIMIT_S, CardsByRelay, PublishedCards, over_mesh
from support.waiting import wait_until

TENSOR = 300_000


@dataclass
class Port:
    """The port of worker-0 while its group forms, and everything that strangers keep open there."""

    number: int
    card: MemberCard
    recorded: list[bytes] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.number), LIMIT_S)
        self.held.append(sock)
        return sock

    def say(self, *pieces: bytes) -> socket.socket:
        sock = self.connect()
        with suppress(OSError):  # it may have been dismissed already
            for piece in pieces:
                sock.sendall(piece)
        return sock


def talk(port: Port, handshake: Handshake) -> None:
    """Go through a handshake as far as the other side goes along."""
    sock, turn = port.connect(), next(handshake)
    with suppress(StopIteration, PeerError, OSError):
        while True:
            sock.sendall(turn.send)
            answer = b""
            while len(answer) < turn.receive:
                data = sock.recv(turn.receive - len(answer))
                if not data:
                    return
                answer += data
            turn = handshake.send(answer)


def as_worker_of_another_run(port: Port) -> Handshake:
    """Greet with the public key of the right worker-0, and keys of one's own."""
    return greet(
        1,
        make_pairs(
            GroupSecret("worker-1", host="127.0.0.1", port=1),
            1,
            {0: port.card},
            group="workers",
            encrypt="never",
        )[0],
    )


def garbage(port: Port) -> None:
    port.say(os.urandom(400))


def guess_of_gloo(port: Port) -> None:
    for number in range(6):
        port.say(struct.pack("<q", number), bytes(60))


def silent(port: Port) -> None:
    port.connect()


def half_a_greeting(port: Port) -> None:
    port.say(b"PHX1\0\1" + bytes(20))


def byte_by_byte(port: Port) -> None:
    port.say(*(bytes([one]) for one in b"PHX1\0\1" + os.urandom(48)))


def hangs_up(port: Port) -> None:
    port.say(b"PHX1").close()


def wrong_run(port: Port) -> None:
    talk(port, as_worker_of_another_run(port))


def replay(port: Port) -> None:
    port.say(*port.recorded)


def flood(port: Port) -> None:
    for _ in range(150):
        port.connect()


STRANGERS: dict[Callable[[Port], None], str] = {
    garbage: "no proof",
    guess_of_gloo: "no proof",
    silent: "silent",
    half_a_greeting: "silent",
    byte_by_byte: "no proof",
    hangs_up: "no greeting",
    wrong_run: "no proof",
    replay: "no proof",
    flood: "crowded out",
}


def record_a_greeting() -> list[bytes]:
    """Return what a worker-1 said to the worker-0 of an earlier group."""
    cards, said = PublishedCards(), bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = GroupSecret("worker-0", host="127.0.0.1", port=listener.getsockname()[1])
        cards.put("workers/worker-0", own.card.pack())

        def accept() -> None:
            near, _ = listener.accept()
            with near:
                said.extend(near.recv(1000))

        thread = threading.Thread(target=accept)
        thread.start()
        with suppress(TimeoutExpired):
            over_mesh(2, channel=cards, start_s=0.5)(1)
        thread.join(LIMIT_S)
    return [bytes(said), bytes(16)]


@contextmanager
def half_formed_group() -> Iterator[tuple[Port, Callable[[], list[MeshCollective]]]]:
    """Give the port of a worker-0 that waits for worker-1, and what completes the group."""
    cards = PublishedCards()
    make = over_mesh(2, channel=cards)
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        first = pool.submit(make, 0)
        published = cards.get("workers/worker-0", Deadline.after(LIMIT_S, "the card of worker-0"))
        card = MemberCard.unpack(published)
        port = Port(card.port, card)

        def complete() -> list[MeshCollective]:
            second = pool.submit(make, 1)
            groups = [first.result(LIMIT_S), second.result(LIMIT_S)]
            for group in groups:
                stack.callback(group.close)
            return groups

        yield port, complete
        for sock in port.held:
            sock.close()


def sum_over(groups: list[MeshCollective]) -> list[torch.Tensor]:
    tensors = [torch.arange(TENSOR, dtype=torch.float32) * (rank + 1) for rank in (0, 1)]
    pending = [group.start_all_reduce(one) for group, one in zip(groups, tensors, strict=True)]
    for one in pending:
        one.wait()
    return tensors


@pytest.mark.parametrize("moment", ["first", pytest.param("late", marks=pytest.mark.full)])
@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda one: one.__name__)
def test_a_stranger_gets_nothing_and_is_counted(
    stranger: Callable[[Port], None], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_maker, "HANDSHAKE_S", 0.4 if STRANGERS[stranger] == "silent" else 5.0)
    with half_formed_group() as (port, complete):
        port.recorded = record_a_greeting() if stranger is replay else []
        visitors = ThreadPoolExecutor(1)
        if moment == "first":
            visit = visitors.submit(stranger, port)
            wait_until(lambda: port.held, "the stranger to have connected")
            groups = complete()
        else:
            groups = complete()
            visit = visitors.submit(stranger, port)
        expected = torch.arange(TENSOR, dtype=torch.float32) * 3
        for tensor in sum_over(groups):
            assert torch.equal(tensor, expected)
        reason = STRANGERS[stranger]
        wait_until(lambda: groups[0].refused[reason], f"'{reason}' to be counted")
        visit.result(LIMIT_S)
        visitors.shutdown()
        for tensor in sum_over(groups):
            assert torch.equal(tensor, expected)
        for sock in [one for one in port.held if one.fileno() >= 0]:
            sock.setblocking(False)
            with suppress(BlockingIOError, OSError):
                # Nothing but the answer to a greeting under the right key is ever sent.
                assert sock.recv(1000) == b""


def test_a_greeting_of_this_very_group_is_of_no_use_to_whoever_recorded_it() -> None:
    """It is held up on its way, repeated by a stranger, and answered; only its sender can go on."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        cards = CardsByRelay(stack, cut_after=1)
        make = over_mesh(2, channel=cards)
        forming = [pool.submit(make, rank) for rank in (0, 1)]
        relay = wait_until(lambda: cards.relay, "the relay")
        wait_until(lambda: relay.num_cuts, "the greeting to be held up")
        with socket.create_connection(("127.0.0.1", relay.port), LIMIT_S) as sock:
            sock.sendall(bytes(relay.recorded[0]))
            answer = sock.recv(1000)
            sock.sendall(bytes(16))
            assert sock.recv(1000) == b""
        groups = [one.result(LIMIT_S) for one in forming]
        for group in groups:
            stack.callback(group.close)
        assert len(answer) == 48
        assert groups[0].refused["no proof"] == 1
        assert torch.equal(*sum_over(groups))


def listening_ports() -> set[int]:
    connections = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


def proofs_of(rank: int, secrets: list[GroupSecret]) -> dict[int, MemberPair]:
    cards = {n: one.card for n, one in enumerate(secrets) if n != rank}
    return make_pairs(secrets[rank], rank, cards, group="workers", encrypt="never")


def join_gloo(visits: bool) -> list[list[int]]:
    """Form a Gloo group, and return who of it did not prove itself, in the eyes of each rank."""
    store = dist.HashStore()
    secrets = [GroupSecret(f"worker-{n}", host="127.0.0.1", port=0) for n in (0, 1)]
    before = listening_ports()

    def join(rank: int) -> list[int]:
        group = GlooCollective(store, rank=rank, size=2, host="127.0.0.1", deadline_s=LIMIT_S)
        try:
            return unproven_members(group.process_group, rank, proofs_of(rank, secrets))
        finally:
            group.close()

    with ThreadPoolExecutor(2) as pool, ExitStack() as visitors:
        first = pool.submit(join, 0)
        ports = wait_until(lambda: listening_ports() - before, "the port of rank 0")
        for port in ports if visits else ():
            for number in range(6):
                # All that Gloo asks of a member.
                sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
                visitors.enter_context(sock)
                sock.sendall(struct.pack("<q", number))
        second = pool.submit(join, 1)
        return [first.result(LIMIT_S), second.result(LIMIT_S)]


def test_the_members_of_a_gloo_group_prove_themselves() -> None:
    assert join_gloo(visits=False) == [[], []]


def test_somebody_in_a_worker_s_place_in_a_gloo_group_cannot_prove_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gloo_proof, "PROOF_S", 2.0)
    # Which of two members listens and which one connects depends on the numbers of their ports;
    # only where the first one listens can anybody come before the second.
    found: list[list[list[int]]] = [[[], []]]
    while found[-1] == [[], []] and len(found) < 30:
        found.append(join_gloo(visits=True))
    assert found[-1] == [[1], [0]]
