"""How workers join a group over the real control channel: which exchange, and what is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed import ProcessGroupGloo

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.gloo_proof import unproven_members
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.pairing import MemberPair
from phalanx.records.events import Refused
from phalanx.records.log import EventLog, read_events
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.control import ControlServer
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import Progress
from phalanx.worker import groups
from phalanx.worker.context import WorkerContext
from phalanx.worker.groups import join_group
from support.ranks import LIMIT_S


@contextmanager
def controller() -> Iterator[ControlServer]:
    """A control channel that a thread drives, as the controller's loop does."""
    over = threading.Event()
    with ControlServer() as server:

        def drive() -> None:
            while not over.is_set():
                server.receive(0.02)

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield server
        finally:
            over.set()
            thread.join(LIMIT_S)


def context_of(
    stack: ExitStack, server: ControlServer, keys: KeyPair, job: Mapping[str, Any], **given: Any
) -> WorkerContext:
    folder, rank = given.pop("folder"), given["rank"]
    control = ControlClient(
        server.address,
        server_key=server.public_key,
        keys=keys,
        progress=Progress,
        on_stop=lambda reason: None,
    )
    spec = WorkerSpec.model_validate(
        {
            "job": job_from_mapping(dict(job)),
            "role": "worker",
            "incarnation": 1,
            "run_dir": str(folder),
            "data_root": str(folder),
            "cache_root": str(folder),
            "threads": 1,
            "cpus": (),
            "attempt": 1,
            "resume": None,
            "control_address": server.address,
            "controller_key": server.public_key,
            "public_key": keys.public,
            "secret_key": keys.secret,
            "parent_pid": None,
        }
        | given
    )
    log = stack.enter_context(EventLog(folder / f"worker-{rank}.jsonl"))
    # A group needs neither figures nor samples of the process.
    rest = cast(Any, None)
    return WorkerContext(spec, stack.enter_context(control), log, rest, 0.0, rest)


def join(
    folder: Path,
    strategy: Mapping[str, str],
    addresses: tuple[str, str],
    body: Callable[[Collective], object],
) -> list[Collective]:
    """Form a group of two workers, let each use it, and return both ends, closed."""
    job = {"workers": 2, "strategy": dict(strategy)}
    with controller() as server, ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        keys = [server.admit(f"worker-{rank}") for rank in (0, 1)]
        contexts = [
            context_of(stack, server, keys[n], job, rank=n, address=addresses[n], folder=folder)
            for n in (0, 1)
        ]
        ends = [one.result(LIMIT_S) for one in [pool.submit(join_group, c) for c in contexts]]
        for one in [pool.submit(body, end) for end in ends]:
            one.result(LIMIT_S)
        for end in ends:
            end.close()
        return ends


def add_up(group: Collective) -> None:
    tensor = torch.full((50_000,), float(group.rank + 1))
    group.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((50_000,), 3.0))


def refused(folder: Path) -> list[Refused]:
    found = [read_events(folder / f"worker-{rank}.jsonl", Refused) for rank in (0, 1)]
    return [one for events in found for one in events if isinstance(one, Refused)]


HERE = ("127.0.0.1", "127.0.0.1")
# Every address of 127.0.0.0/8 is this machine, and yet two of them are two machines to a group.
APART = ("127.0.0.2", "127.0.0.3")


@pytest.mark.parametrize(
    ("strategy", "addresses", "kind"),
    [
        ({"name": "allreduce"}, HERE, GlooCollective),
        ({"name": "allreduce", "encrypt": "always"}, HERE, MeshCollective),
        ({"name": "local_sgd", "encrypt": "never"}, APART, MeshCollective),
        ({"name": "local_sgd"}, APART, MeshCollective),
        ({"name": "split"}, APART, MeshCollective),
    ],
    ids=["one machine", "always", "never", "two machines", "split"],
)
def test_gloo_on_one_machine_and_links_of_our_own_between_machines(
    tmp_path: Path, strategy: Mapping[str, str], addresses: tuple[str, str], kind: type[Collective]
) -> None:
    ends = join(tmp_path, strategy, addresses, add_up)
    assert [type(end) for end in ends] == [kind, kind]
    assert refused(tmp_path) == []


def test_a_gloo_group_that_one_member_doubts_is_used_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubt(group: ProcessGroupGloo, rank: int, pairs: Mapping[int, MemberPair]) -> list[int]:
        unproven = unproven_members(group, rank, pairs)
        assert unproven == []
        return [0] if rank == 1 else unproven

    monkeypatch.setattr(groups, "unproven_members", doubt)
    ends = join(tmp_path, {"name": "allreduce"}, HERE, add_up)
    assert [type(end) for end in ends] == [MeshCollective, MeshCollective]
    assert [one.reasons for one in refused(tmp_path)] == [{"impostor": 1}]
