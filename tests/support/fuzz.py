"""Every socket of ours under malformed frames: of strangers, and of members that were admitted.

A target opens the real thing, with nothing but its peers made up, takes frames by the thousand, and
says at the end what is wrong: nothing may have crashed, moved, or grown, and a rightful peer must
be served as before. `benchmarks/fuzz.py` is the long form, `tests/ranks/test_fuzz.py` the short.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import psutil
import torch
import zmq
from typing_extensions import override

from phalanx.agent.session import Session, agent_program
from phalanx.agent.ssh import LocalRoute
from phalanx.paramserver.handshake import (
    ClientIdentity,
    ConnectAccepted,
    ConnectRequest,
    HandshakeReply,
    digest_of,
)
from phalanx.paramserver.server import Server
from phalanx.store.messages import StoreRequest
from phalanx.wire.control import ControlServer
from phalanx.wire.control_client import ControlClient
from phalanx.wire.delivery import Delivery
from phalanx.wire.fork_client import ForkServer
from phalanx.wire.forking import surroundings, to_socket_name
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.messages import FromWorker, Hello, Progress
from phalanx.wire.tokens import present_token
from support.mutate import (
    NUMBERS,
    is_bulk,
    mutate_bytes,
    mutate_header,
    mutate_json,
    mutate_msgpack,
    raw_frames,
    sample_headers,
    sample_of,
)
from support.paramserver import (
    client_for,
    consistency_rule,
    exchange,
    make_shard,
    serving,
    settings_for,
    small_layout,
)
from support.stores import serve_store
from support.there import here

MAX_GROWTH_BYTES, MAX_DESCRIPTORS = 64 << 20, 32
# In front of every line that an agent sends.
MARKER = b"@phalanx@"
_SOON_S = 20.0


@dataclass
class FuzzResult:
    """What came of one target.

    Attributes:
        name: Of the target.
        frames: That were sent.
        seconds: That took.
        grown_bytes: Of resident memory meanwhile.
        grown_descriptors: Likewise.
        findings: What should not have been.
    """

    name: str
    frames: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    grown_descriptors: int = 0
    findings: list[str] = field(default_factory=list)


class FuzzTarget(ABC):
    """One socket and one kind of peer; use as a context manager.

    Args:
        folder: Where files may be made.
        chance: Makes the frames.
    """

    name: str
    share = 1.0
    """How many frames it gets, compared with others; connections cost more than frames."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.stack = ExitStack()
        self.folder = folder

    def __enter__(self) -> FuzzTarget:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @abstractmethod
    def open(self) -> None:
        """Start what is fuzzed."""

    @abstractmethod
    def feed(self) -> None:
        """Send one malformed frame."""

    @abstractmethod
    def check(self) -> list[str]:
        """Say what is wrong after all frames."""

    @property
    def pid(self) -> int | None:
        """The process that may grow; None: this one."""
        return None


@contextmanager
def dealer(address: str, prepare: Callable[[zmq.Socket[bytes]], object]) -> Iterator[Any]:
    """A connected socket, whose queue holds a few frames only so that none is sent to nobody."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.linger = 0
        made.setsockopt(zmq.SNDHWM, 1000)
        prepare(made)
        made.connect(address)
        yield made


class ControlMember(FuzzTarget):
    """The controller's socket, and a process of the run that talks nonsense."""

    name = "control channel, member"
    share = 3.0

    @override
    def open(self) -> None:
        self._server = self.stack.enter_context(ControlServer())
        keys = self._server.admit("worker-0")
        kinds = get_args(FromWorker)
        self._samples = [msgspec.msgpack.encode(sample_of(kind, self.chance)) for kind in kinds]
        self._delivery = Delivery()
        self._socket = self.stack.enter_context(
            dealer(
                self._server.address,
                lambda one: secure_client(one, keys, self._server.public_key),
            )
        )

    def _client(self, name: str) -> ControlClient:
        return ControlClient(
            self._server.address,
            server_key=self._server.public_key,
            keys=self._server.admit(name),
            progress=Progress,
            on_stop=lambda reason: None,
        )

    @override
    def feed(self) -> None:
        for frame in self._frames():
            with suppress(zmq.Again):
                if self.chance.random() < 0.05:
                    self._socket.send_multipart([frame] * self.chance.randrange(2, 9), zmq.NOBLOCK)
                else:
                    self._socket.send(frame, zmq.NOBLOCK)
        drain(self._server)
        while self._socket.poll(0):
            self._socket.recv_multipart()

    def _frames(self) -> list[bytes]:
        """A nonsensical message in a sound frame, or a frame that is not sound."""
        body = mutate_msgpack(self.chance, self.chance.choice(self._samples))
        match self.chance.randrange(4):
            case 0:
                return [mutate_bytes(self.chance, self._delivery.note(body))]
            case 1:
                fields = [self.chance.choice(NUMBERS) % 2**64 for _ in range(3)]
                bits = self.chance.choice([0, 1, 2, 3, 4, 65535])
                return [struct.pack("<HHQQQ", 0xC7A1, bits, *fields) + body]
            case _:
                return [self._delivery.note(body)]

    @override
    def check(self) -> list[str]:
        drain(self._server, until=lambda: False, limit_s=0.5)
        with self._client("worker-1") as client:
            client.send(Hello(pid=7, host="here"))
            heard = drain(self._server, until=lambda: False, limit_s=2.0)
        if ("worker-1", Hello(pid=7, host="here")) not in heard:
            return ["a rightful process is heard no more"]
        return []


def drain(
    server: ControlServer, *, until: Callable[[], bool] = lambda: True, limit_s: float = _SOON_S
) -> list[tuple[str, object]]:
    """Read messages as the controller does, until something holds and none is left."""
    heard: list[tuple[str, object]] = []
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ready = until()
        found = server.receive(0.0 if ready else 0.02)
        if found is not None:
            heard.append(found)
        elif ready:
            break
    return heard


class ParameterServerMember(FuzzTarget):
    """A server's bulk socket, and an admitted client whose every frame is malformed."""

    name = "bulk socket, member"
    share = 3.0
    role = "worker"

    @override
    def open(self) -> None:
        layout = small_layout(12)
        shard = make_shard(layout, rule=consistency_rule(consistency="async"), workers=[0])
        self._shard, self._layout = shard, layout
        server = Server(shard, keys=KeyPair.make(), settings=settings_for(layout))
        self._own, self._foreign = KeyPair.make(), KeyPair.make()
        self._server = self.stack.enter_context(serving(server))
        identity = ClientIdentity(self.role, 1, 1)  # type: ignore[arg-type]
        for keys, client in (
            (self._own, ClientIdentity("worker", 0, 1)),
            (self._foreign, identity),
        ):
            server.call(partial(server.admit, keys.public, client)).result(_SOON_S)
        self._before = shard.updater.parameters.clone()
        self.door = self.stack.enter_context(
            dealer(
                server.address.door,
                lambda one: secure_client(one, self._foreign, server.address.public_key),
            )
        )
        self.door.send(msgspec.msgpack.encode(ConnectRequest(0, digest_of(layout))))
        assert self.door.poll(int(_SOON_S * 1000)), "the server does not answer"
        reply = msgspec.msgpack.decode(self.door.recv(), type=HandshakeReply)
        assert isinstance(reply, ConnectAccepted)
        token = reply.token
        assert token is not None
        self._bulk = self.stack.enter_context(
            dealer(reply.bulk, lambda one: present_token(one, token))
        )
        self._samples = sample_headers(self.chance, worker=1, incarnation=1)

    def frames(self) -> list[bytes]:
        """A message that no rightful client sends."""
        header = mutate_header(self.chance, self.chance.choice(self._samples))
        if is_bulk(header):
            # What has the form of a header is not what it says: another sender, or another length.
            header = mutate_bytes(self.chance, header)[:-1]
        size = self.chance.choice([0, 3, 8, 16, 4000])
        return [header, *([self.chance.randbytes(size)] * self.chance.randrange(4))]

    @override
    def feed(self) -> None:
        with suppress(zmq.Again):
            self._bulk.send_multipart(self.frames(), zmq.NOBLOCK)
        while self._bulk.poll(0):
            self._bulk.recv_multipart()

    @override
    def check(self) -> list[str]:
        found = []
        facts = self._server.call(self._server.facts).result(_SOON_S)
        if facts.refused == 0:
            found.append("nothing was refused")
        if not torch.equal(self._shard.updater.parameters, self._before):
            found.append("the parameters have changed")
        if facts.pushes != facts.applied + facts.dropped + facts.lost + facts.gathered:
            found.append(f"it lost track of its pushes: {facts}")
        client, parameters, gradients = client_for(
            self._layout, [self._server.address], self._own, incarnation=1
        )
        from support.paramserver import soon

        with client:
            client.connect(soon("a place"))
            gradients.fill_(1.0)
            exchange(client)
        if not torch.allclose(parameters, self._before - 0.1):
            found.append("a rightful worker is served no more")
        return found


class ParameterServerReader(ParameterServerMember):
    """The same, and a client that may only read: whatever it says, nothing moves."""

    name = "bulk socket, reader"
    role = "reader"

    @override
    def frames(self) -> list[bytes]:
        header = mutate_header(self.chance, self.chance.choice(self._samples))
        return [header, *([self.chance.randbytes(16)] * self.chance.randrange(2))]


class HandshakeMember(ParameterServerMember):
    """A server's handshake socket, and an admitted client that talks nonsense there."""

    name = "handshake socket, member"
    share = 1.0

    @override
    def feed(self) -> None:
        whole = msgspec.msgpack.encode(ConnectRequest(0, digest_of(self._layout)))
        frame = mutate_msgpack(self.chance, whole)
        with suppress(zmq.Again):
            self.door.send_multipart([frame] * self.chance.choice([1, 1, 1, 2, 5]), zmq.NOBLOCK)
        while self.door.poll(0):
            self.door.recv_multipart()


class StoreMember(FuzzTarget):
    """The store's socket, and a remote process that asks for nonsense."""

    name = "store socket, member"
    share = 2.0

    @override
    def open(self) -> None:
        (self.folder / "run").mkdir()
        (self.folder / "secret.safetensors").write_bytes(b"untouched")
        self._served = self.stack.enter_context(serve_store(self.folder / "run"))
        (self.folder / "run" / "checkpoints" / "a.safetensors").write_bytes(bytes(1000))
        keys = self._served.control.admit("worker-1")
        self._socket = self.stack.enter_context(
            dealer(
                self._served.address,
                lambda one: secure_client(one, keys, self._served.control.public_key),
            )
        )
        self._numbers = [self.chance.getrandbits(62) for _ in range(8)]

    @override
    def feed(self) -> None:
        chance = self.chance
        kind = chance.choice(get_args(StoreRequest))
        request = msgspec.structs.replace(
            sample_of(kind, chance), number=chance.choice(self._numbers)
        )
        if hasattr(request, "name"):
            name = chance.choice(["checkpoints/a.safetensors", "../secret.safetensors", "servers/"])
            request = msgspec.structs.replace(request, name=name)
        for number in {"offset", "length", "size"} & set(request.__struct_fields__):
            if chance.random() < 0.5:
                request = msgspec.structs.replace(request, **{number: chance.choice(NUMBERS)})
        frame = msgspec.msgpack.encode(request)
        # Some requests are in order: others can only go wrong in a transfer that is open.
        if chance.random() < 0.7:
            frame = mutate_msgpack(chance, frame)
        payload = [chance.randbytes(chance.choice([0, 1, 100]))] * chance.choice([0, 1, 1, 2])
        with suppress(zmq.Again):
            self._socket.send_multipart([frame, *payload], zmq.NOBLOCK)
        while self._socket.poll(0):
            self._socket.recv_multipart()

    @override
    def check(self) -> list[str]:
        found = []
        names = {path.name for path in self.folder.iterdir()}
        if names != {"run", "secret.safetensors"}:
            found.append(f"files appeared outside: {names}")
        if (self.folder / "secret.safetensors").read_bytes() != b"untouched":
            found.append("a file outside was changed")
        client = self._served.client("worker-0", limit_s=_SOON_S)
        try:
            with client.upload("checkpoints/b.safetensors") as upload:
                upload.write(b"content")
        except Exception as error:  # whatever it is, it is what is wrong
            found.append(f"a rightful process cannot write: {error}")
        return found


class ForkServerPeer(FuzzTarget):
    """The fork server's socket, and a process of the same user that sends no request."""

    name = "fork server, same user"
    share = 0.05

    @override
    def open(self) -> None:
        self._server = ForkServer()
        self._server.start()
        self.stack.callback(self._server.close)
        self._whole = json.dumps(
            {
                "module": "no.such.module",
                "directory": "/",
                "environment": {"A": "b"},
                "cpus": [0],
                "surroundings": surroundings({}) | {"umask": "no umask at all"},
            }
        ).encode()
        # Until it has imported everything; refused, because the surroundings differ.
        assert self._speak(struct.pack("!I", len(self._whole)) + self._whole, wait_s=60.0)

    @property
    @override
    def pid(self) -> int | None:
        return self._server.pid

    def _speak(self, data: bytes, *, wait_s: float, num_streams: int = 3) -> bool:
        """Send something, with descriptors; returns whether there was an answer."""
        with (
            Path(os.devnull).open("rb") as stream,
            socket.socket(socket.AF_UNIX) as connection,
            suppress(OSError),
        ):
            connection.settimeout(wait_s)
            connection.connect(to_socket_name(self._server.address))
            sent = socket.send_fds(connection, [data], [stream.fileno()] * num_streams)
            # It may have answered and gone before it was told the rest.
            with suppress(OSError):
                if sent < len(data):
                    connection.sendall(data[sent:])
                connection.shutdown(socket.SHUT_WR)
            return bool(connection.recv(4096))
        return False

    @override
    def feed(self) -> None:
        body = mutate_json(self.chance, self._whole)
        # A request that were in order would really start a process.
        with suppress(ValueError):
            told = json.loads(body)
            if isinstance(told, dict) and told.get("surroundings") == {}:
                body = b"{}"
        length = len(body)
        if self.chance.random() < 0.2:
            length = self.chance.choice([0, 1, length + 1, 2**31, 2**32 - 1])
        streams = self.chance.choice([0, 1, 3, 3, 3, 20])
        self._speak(struct.pack("!I", length) + body, wait_s=_SOON_S, num_streams=streams)

    @override
    def check(self) -> list[str]:
        if self._server.pid is None:
            return ["the fork server has ended"]
        found = []
        children = psutil.Process(self._server.pid).children()
        if children:
            found.append(f"it forked {len(children)} processes")
        if not self._speak(struct.pack("!I", len(self._whole)) + self._whole, wait_s=_SOON_S):
            found.append("it answers no more")
        return found


class Stranger(FuzzTarget):
    """All ports of a run, and strangers that write to them."""

    name = "every port, stranger"
    share = 0.1

    @override
    def open(self) -> None:
        (self.folder / "run").mkdir()
        layout = small_layout(12)
        shard = make_shard(layout, rule=consistency_rule(consistency="async"), workers=[0])
        self._shard, self._before = shard, shard.updater.parameters.clone()
        keys = KeyPair.make()
        server = Server(shard, keys=keys, settings=settings_for(layout))
        self._server = self.stack.enter_context(serving(server))
        self._served = self.stack.enter_context(serve_store(self.folder / "run"))
        self._ports = [
            one.laddr.port
            for one in psutil.Process().net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        ]
        assert len(self._ports) >= 4, "control, store, handshake and bulk"

    @override
    def feed(self) -> None:
        with suppress(OSError):
            port = self.chance.choice(self._ports)
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(raw_frames(self.chance))
                # Not every one of them waits for the answer.
                if self.chance.random() < 0.3:
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1024)

    @override
    def check(self) -> list[str]:
        found = []
        control = self._served.control
        if drain(control, until=lambda: False, limit_s=0.5):
            found.append("the controller listened to a stranger")
        if not torch.equal(self._shard.updater.parameters, self._before):
            found.append("the parameters have changed")
        with ControlClient(
            control.address,
            server_key=control.public_key,
            keys=control.admit("worker-1"),
            progress=Progress,
            on_stop=lambda reason: None,
        ):
            if not drain(control, until=lambda: False, limit_s=3.0):
                found.append("a rightful process is heard no more")
        return found


@dataclass(frozen=True)
class _SaidBefore(LocalRoute):
    """Route to a machine that says what is in a file, and ends."""

    said: str = ""

    @override
    def command(self, remote: str) -> list[str]:
        return ["cat", self.said]


class AgentNews(FuzzTarget):
    """The controller's end of a session, and a machine whose agent sends malformed lines."""

    name = "lines from an agent"
    share = 0.3
    _WHOLE = (
        {"news": "alive"},
        {"news": "answer", "id": 1, "ok": 3},
        {"news": "output", "path": "logs/w.log", "content": "eA=="},
        {"news": "exit", "name": "worker-0", "code": 0},
        {"news": "hello", "pid": 1, "host": "m", "home": "/", "python": [3, 11, 0]},
    )

    @override
    def open(self) -> None:
        self._lines: list[bytes] = []
        self._errors: list[str] = []

    @override
    def feed(self) -> None:
        body = mutate_json(self.chance, json.dumps(self.chance.choice(self._WHOLE)).encode())
        line = body.replace(b"\n", b" ")
        marker = MARKER if self.chance.random() < 0.9 else b""
        self._lines.append(marker + line + b"\n")

    @override
    def check(self) -> list[str]:
        told = self.folder / "lines"
        told.write_bytes(b"".join(self._lines))
        before = threading.excepthook
        threading.excepthook = lambda error: self._errors.append(repr(error.exc_value))
        session = Session(_SaidBefore(here().machine, said=str(told)), lambda news: None)
        session.line.open()
        thread = threading.Thread(target=session._receive, name="from-m")
        try:
            thread.start()
            thread.join(_SOON_S * 3)
        finally:
            threading.excepthook = before
            session.line.cut()
            session.line.end_input()
            session.line.close()
        found = [f"the thread that reads ended by {error[:200]}" for error in self._errors]
        if session.fault is None:
            found.append("the machine's end was not noticed")
        return found


class AgentOrders(FuzzTarget):
    """An agent, and orders that are malformed: it answers or ends, and leaves nothing."""

    name = "lines to an agent"
    share = 0.05
    _WHOLE = (
        {"do": "ping"},
        {"do": "clock", "id": 1, "bytes": 0},
        {"do": "resolve", "id": 2, "address": "localhost"},
        {"do": "exists", "id": 4, "path": "/"},
    )

    @override
    def open(self) -> None:
        self._is_deaf = False
        self._start()

    def _start(self) -> None:
        source = agent_program()
        loader = (
            "import sys; n = int(sys.stdin.buffer.readline()); "
            "exec(compile(sys.stdin.buffer.read(n), 'agent', 'exec'))"
        )
        self._errors = (self.folder / "stderr").open("w+b")
        self._agent = subprocess.Popen(
            [sys.executable, "-u", "-c", loader],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        self.stack.callback(self._end, self._agent)
        self._tell(b"%d\n" % len(source) + source)
        assert self._agent.stdin is not None
        # An agent that reads no more must not hold this process up.
        os.set_blocking(self._agent.stdin.fileno(), False)

    def _tell(self, data: bytes) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.write(data)
        self._agent.stdin.flush()

    def _end(self, agent: subprocess.Popen[bytes]) -> None:
        agent.kill()
        agent.wait()
        assert agent.stdin is not None
        with suppress(OSError):
            agent.stdin.close()
        self._errors.close()

    @property
    @override
    def pid(self) -> int | None:
        return self._agent.pid

    @override
    def feed(self) -> None:
        line = mutate_json(self.chance, json.dumps(self.chance.choice(self._WHOLE)).encode())
        data = line.replace(b"\n", b" ") + b"\n"
        assert self._agent.stdin is not None
        with suppress(OSError):
            while data:
                patience_s = 0.0 if self._is_deaf else 2.0
                _, ready, _ = select.select([], [self._agent.stdin], [], patience_s)
                if not ready:
                    self._is_deaf = True
                    return
                data = data[os.write(self._agent.stdin.fileno(), data) :]

    @override
    def check(self) -> list[str]:
        assert self._agent.stdin is not None
        with suppress(OSError):
            self._agent.stdin.close()
        try:
            code = self._agent.wait(_SOON_S)
        except subprocess.TimeoutExpired:
            return ["it did not end with its connection"]
        self._errors.seek(0)
        trouble = self._errors.read().decode(errors="replace").strip().splitlines()
        found = [f"its reader ended by {trouble[-1][:200]}"] if trouble else []
        if self._is_deaf:
            found.append("it read no more, and did not end either")
        return [*found, *([f"it ended with {code}"] if code else [])]


TARGETS: tuple[type[FuzzTarget], ...] = (
    ControlMember,
    ParameterServerMember,
    ParameterServerReader,
    HandshakeMember,
    StoreMember,
    ForkServerPeer,
    Stranger,
    AgentNews,
    AgentOrders,
)


def fuzz(
    kind: type[FuzzTarget], folder: Path, *, num_frames: int, seed: int, warm_up: int = 300
) -> FuzzResult:
    """Feed one target; what it needs once, such as buffers, does not count as growth."""
    result = FuzzResult(kind.name)
    crashes: list[str] = []
    before_hook = threading.excepthook
    threading.excepthook = lambda error: crashes.append(
        f"thread {error.thread.name if error.thread else '?'} ended by {error.exc_value!r}"
    )
    try:
        with kind(folder, random.Random(f"{seed} {kind.name}")) as target:
            began = time.monotonic()
            before: tuple[int, int] | None = None
            for number in range(num_frames):
                if number == min(warm_up, num_frames // 2):
                    before = _size_of(target.pid)
                target.feed()
                result.frames += 1
            result.seconds = time.monotonic() - began
            result.findings += target.check()
            after = _size_of(target.pid)
            if before is not None and after is not None:
                result.grown_bytes = after[0] - before[0]
                result.grown_descriptors = after[1] - before[1]
    except Exception as error:  # whatever it is, it is what is wrong
        result.findings.append(f"{type(error).__name__}: {error}")
    finally:
        threading.excepthook = before_hook
    result.findings += crashes[:3]
    if result.grown_bytes > MAX_GROWTH_BYTES:
        result.findings.append(f"it grew by {result.grown_bytes >> 20} MB")
    if result.grown_descriptors > MAX_DESCRIPTORS:
        result.findings.append(f"it holds {result.grown_descriptors} descriptors more")
    return result


def _size_of(pid: int | None) -> tuple[int, int] | None:
    try:
        process = psutil.Process(pid)
        return process.memory_info().rss, process.num_fds()
    except psutil.Error:
        return None
