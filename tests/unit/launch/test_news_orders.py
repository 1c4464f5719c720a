"""News of several machines in every order, late or of an earlier start: who is believed what."""

from __future__ import annotations

import base64
import random
import re
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.launch.hosts import HostGroup
from phalanx.launch.ssh import SshGroup
from phalanx.spec.worker import WorkerSpec
from support.waiting import wait_until

MACHINES = ("a", "b")
PROCESSES = ("worker-0", "worker-1", "server-0")
LINE = re.compile(r"\[(worker-\d|server-\d) ([ab])\] life-(\d+) line-(\d+)")
# Of a machine whose process went elsewhere, the rest of a line is refused.
BEGUN = re.compile(r"\[(worker-\d|server-\d) [ab]\] [lifen0-9 -]*")


class PlayedSession:
    """A connection that carries out every order; what its machine says comes later, in order."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.fault: Any = None
        self.heard_s = 0.0
        self.on_news: Any = None
        self.serials: dict[str, int] = {}
        self.under_way: deque[dict[str, Any]] = deque()

    def tell(self, order: dict[str, Any]) -> Future[Any]:
        self.serials[order["name"]] = order["serial"]
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def wait(self, answer: Future[Any], limit_s: float) -> Any:
        return answer.result(limit_s)

    def arrive(self) -> None:
        if self.under_way:
            self.on_news(self.under_way.popleft())


@dataclass
class Life:
    """One start of a process."""

    number: int
    machine: str
    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None


class Play:
    """Processes that print, end, and move, with their news under way."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        (root / "logs").mkdir()
        self.root, self.chance = root, chance
        self.sessions = {name: PlayedSession(name) for name in MACHINES}
        hosts: Any = {
            name: SimpleNamespace(session=session, python="python", code=("code",))
            for name, session in self.sessions.items()
        }
        self.hosts = HostGroup(hosts, listen="127.0.0.1")
        self.group = SshGroup(self.hosts, root, silence_s=60.0)
        self.disk_is_free = threading.Event()
        self.disk_is_free.set()
        self.num_lives = 0
        self.lives: dict[str, Life] = {}
        for process in PROCESSES:
            self.start(process)

    def start(self, process: str) -> None:
        role, rank = process.split("-")
        self.num_lives += 1
        life = self.lives[process] = Life(self.num_lives, self.chance.choice(MACHINES))
        spec: Any = SimpleNamespace(
            process=process, host=life.machine, role=role, rank=int(rank), can_fork=False,
            module="phalanx.worker", model_dump=lambda **_: {},
        )  # fmt: skip
        played: WorkerSpec = spec
        self.group.add(played)

    def say(self, process: str, text: str) -> None:
        """Text of a process, in parts that may end within a line."""
        session = self.sessions[self.lives[process].machine]
        cut = self.chance.randrange(len(text) + 1)
        for part in (text[:cut], text[cut:]):
            content = base64.b64encode(part.encode()).decode()
            path = f"logs/{process}.log"
            session.under_way.append({"news": "more", "path": path, "content": content})

    def act(self) -> None:
        process = self.chance.choice(PROCESSES)
        life = self.lives[process]
        match self.chance.randrange(10):
            case 0:
                self.start(process)
            case 1 | 2 | 3 if life.exit_code is None:
                line = f"life-{life.number} line-{len(life.lines)}"
                life.lines.append(line)
                self.say(process, f"{line}\n")
            case 4 if life.exit_code is None:
                # Killed within a line.
                self.say(process, f"life-{life.number} line-999")
                session = self.sessions[life.machine]
                life.exit_code = self.chance.choice([0, -9, 1])
                exited = {"name": process, "serial": session.serials[process]}
                session.under_way.append({"news": "exit", **exited, "code": life.exit_code})
            case 5:
                # Another machine speaks of a process that is not its own.
                other = self.sessions[self.chance.choice(MACHINES)]
                if other.machine != life.machine:
                    serial = self.chance.randrange(1, self.num_lives + 1)
                    news = {"news": "exit", "name": process, "serial": serial, "code": 42}
                    other.on_news(news)
            case 6:
                self.hold_writer()
            case 7:
                self.disk_is_free.set()
            case _:
                self.sessions[self.chance.choice(MACHINES)].arrive()

    def hold_writer(self) -> None:
        """All that has come so far is on the disk; what comes from now on waits for it."""
        if self.disk_is_free.is_set():
            reached = threading.Event()
            free = self.disk_is_free = threading.Event()

            def hold(_: object) -> None:
                reached.set()
                free.wait()

            self.hosts.news.put("", {}, hold)
            reached.wait()

    def settle(self) -> None:
        self.disk_is_free.set()
        for session in self.sessions.values():
            while session.under_way:
                session.arrive()
        wait_until(lambda: not any(map(self.hosts.news.has_waiting, ("", *MACHINES))), "the disk")


@given(seed=st.integers(0, 2**32))
@settings(deadline=None)  # a thread writes the files
def test_each_start_of_a_process_is_known_by_its_own_news(seed: int) -> None:
    with TemporaryDirectory() as folder:
        play = Play(Path(folder), random.Random(seed))
        try:
            for _ in range(play.chance.randrange(5, 80)):
                play.act()
            play.settle()
            found = {one.process: one.exit_code for one in play.group.poll()}
            assert found == {name: life.exit_code for name, life in play.lives.items()}
            for process, life in play.lives.items():
                text = (Path(folder) / "logs" / f"{process}.log").read_text()
                assert not text or text.endswith("\n") or life.exit_code is None
                for line in text.splitlines():
                    assert BEGUN.fullmatch(line), f"two lines in one, or half of one: {text}"
                matches = [LINE.fullmatch(line) for line in text.splitlines()]
                own = [m for m in matches if m is not None and int(m[3]) == life.number]
                assert {m[1] for m in own} <= {process}
                assert {m[2] for m in own} <= {life.machine}
                last = [f"life-{life.number} line-999"] if life.exit_code is not None else []
                assert [f"life-{m[3]} line-{m[4]}" for m in own] == [*life.lines, *last]
        finally:
            play.disk_is_free.set()
            play.hosts.news.close()
