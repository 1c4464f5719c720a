"""An agent at the other end of a session: what it sends home, and that it leaves nothing."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.agent.remote.files import MAX_CHUNK_BYTES
from phalanx.agent.remote.measure import TOKEN_LENGTH
from phalanx.agent.session import Session
from phalanx.agent.ssh import LocalRoute
from phalanx.errors import LaunchError
from support.there import children_of, here, is_alive, process_of
from support.waiting import wait_until

LIMIT_S = 60.0
WAYS = ("cold", "warm")
CODE = str(Path(str(phalanx.__file__)).parent.parent)
# Writes down its pid, its lifeline's first line and a last word, then waits.
WORKER = """
import json, os, pathlib, signal, sys
line = sys.stdin.readline()
spec = json.loads(line)
(pathlib.Path(spec["folder"]) / "events" / "w.jsonl").write_text(line)
print("pid", os.getpid(), flush=True)
if spec["mode"] == "stay":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
print("last words", end="", flush=True)
sys.exit(7)
"""


@dataclass(frozen=True)
class ScriptRoute(LocalRoute):
    """A machine whose shell runs a script in place of the agent."""

    script: str = ""

    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", self.script]


class Heard:
    """What a session has heard."""

    def __init__(self) -> None:
        self.news: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def take(self, news: dict[str, Any]) -> None:
        with self._lock:
            self.news.append(news)

    def text(self, path: str) -> str:
        with self._lock:
            parts = [one["content"] for one in self.news if one.get("path") == path]
        return b"".join(base64.b64decode(part) for part in parts).decode()

    def exit_code(self) -> int | None:
        with self._lock:
            codes = [one["code"] for one in self.news if one["news"] == "exit"]
        return codes[-1] if codes else None

    def count(self, kind: str) -> int:
        with self._lock:
            return sum(one["news"] == kind for one in self.news)

    def pid(self) -> int:
        said = wait_until(lambda: self.text("logs/w.log"), "its pid", limit_s=LIMIT_S)
        return int(said.split()[1])


@contextmanager
def session(heard: Heard, *, through_cat: bool = False) -> Iterator[Session]:
    one = Session(here(through_cat=through_cat), heard.take)
    try:
        one.open()
        yield one
    finally:
        one.close()


def begin(line: Session, folder: Path, *, limit_s: float = LIMIT_S, token: str = "t") -> None:
    order = {"do": "begin", "folder": str(folder), "machine": "m", "token": f"{token}{folder}"}
    assert line.ask({**order, "limit_s": limit_s}, LIMIT_S) == str(folder)


def start(line: Session, folder: Path, mode: str, way: str = "cold", path: str = CODE) -> None:
    code = folder.parents[1] / "code"
    code.mkdir(exist_ok=True)
    (code / "asked.py").write_text(WORKER)
    order = {
        "do": "start",
        "name": "w",
        "serial": 1,
        "command": [sys.executable, "-m", "asked"],
        "environment": {"PYTHONPATH": path},
        "directory": str(code),
        "spec": {"folder": str(folder), "mode": mode},
        "warm": way == "warm",
    }
    line.ask(order, LIMIT_S)


def fork_servers(line: Session) -> dict[int, str]:
    """The fork servers that the agent at the other end has started."""
    children = children_of(process_of(line).pid)
    return {pid: said for pid, said in children.items() if "phalanx.worker.fork_server" in said}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_process_writes_comes_home_before_its_exit_code(tmp_path: Path, way: str) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "go", way)
        wait_until(lambda: heard.exit_code() is not None, "the process to end", limit_s=LIMIT_S)
        assert heard.exit_code() == 7
        assert heard.news[-1]["news"] == "exit"
        assert heard.text("logs/w.log").endswith("last words")
        spec = json.loads(heard.text("events/w.jsonl"))
        assert spec["mode"] == "go"
        parents = fork_servers(line) if way == "warm" else [process_of(line).pid]
        assert spec["parent_pid"] in parents, "the process is to die with its agent"
        assert "cold" not in [one["news"] for one in heard.news]
        line.ask({"do": "end"}, LIMIT_S)
        assert not (tmp_path / "work").exists()


def test_the_end_of_the_line_ends_a_process_that_will_not_listen(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "stay")
        pid = heard.pid()
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not is_alive(pid), "the process to be killed")
    wait_until(lambda: not folder.exists(), "its directory to be removed")


def test_silence_ends_everything(tmp_path: Path) -> None:
    """A network that swallows everything and says nothing: no end of input, only silence."""
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard, through_cat=True) as line:
        begin(line, folder, limit_s=2.5)
        start(line, folder, "stay")
        pid = heard.pid()
        cat = next(
            p for p, said in children_of(process_of(line).pid).items() if said.startswith("cat")
        )
        os.kill(cat, signal.SIGSTOP)
        try:
            wait_until(lambda: not is_alive(pid), "the process to be killed")
            wait_until(lambda: not folder.exists(), "its directory to be removed")
        finally:
            os.kill(cat, signal.SIGCONT)


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_agent_takes_its_processes_along_and_is_swept_up_after(
    tmp_path: Path, way: str
) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "stay", way)
        pids = [heard.pid(), *fork_servers(line)]
        os.kill(process_of(line).pid, signal.SIGKILL)
        wait_until(lambda: line.fault, "the line to be missed")
        if way == "warm":
            # Without a lifeline of its own tied: the system ends it with the fork server.
            wait_until(lambda: not any(map(is_alive, pids)), "both to die with the agent")
        assert "broke off" in str(line.fault)
        with pytest.raises(LaunchError, match="broke off"):
            line.ask({"do": "ports", "address": "127.0.0.1", "count": 1}, LIMIT_S)
        assert folder.exists(), "nobody was left to remove it"
    with session(Heard()) as again:
        again.ask({"do": "sweep", "folder": str(folder), "token": f"t{folder}"}, LIMIT_S)
    assert not folder.exists()
    assert not any(map(is_alive, pids))


def test_the_next_run_removes_what_a_killed_agent_left(tmp_path: Path) -> None:
    heard, old, new = Heard(), tmp_path / "work" / "old@m", tmp_path / "work" / "new@m"
    with session(heard) as line:
        begin(line, old)
        os.kill(process_of(line).pid, signal.SIGKILL)
        wait_until(lambda: line.fault, "the line to be missed")
    other = tmp_path / "work" / "mine@m"
    other.mkdir()
    with session(Heard()) as one, session(Heard()) as two:
        begin(one, new, token="one")
        assert not old.exists()
        assert other.exists(), "a folder without our lock is somebody else's"
        begin(two, tmp_path / "work" / "third@m", token="two")
        assert new.exists(), "its agent lives"


@pytest.mark.parametrize("way", WAYS)
def test_killing_and_starting_again(tmp_path: Path, way: str) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "stay", way)
        pid = heard.pid()
        marks = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"PHALANX_RUN=t{folder}".encode() in marks, "by it whatever is left is found"
        assert os.getsid(pid) == pid
        os.kill(pid, signal.SIGSTOP)
        line.ask({"do": "kill", "name": "w"}, LIMIT_S)
        assert not is_alive(pid)
        servers = fork_servers(line)
        start(line, folder, "go", way)
        wait_until(lambda: heard.exit_code() == 7, "its successor to end", limit_s=LIMIT_S)
        assert fork_servers(line) == servers
        assert len(servers) == (way == "warm"), "one forks for all"


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_asks_first_and_kills_after_the_grace(tmp_path: Path, way: str) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "stay", way)
        heard.pid()
        line.ask({"do": "stop", "grace_s": 0.2}, LIMIT_S)
        wait_until(lambda: heard.exit_code() is not None, "the process to be killed")
        assert heard.exit_code() == -signal.SIGKILL


def test_a_process_starts_cold_where_no_fork_server_can_run(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "go", "warm", path=f"{tmp_path}:{CODE}")
        wait_until(lambda: heard.exit_code() == 7, "the process to end", limit_s=LIMIT_S)
        assert json.loads(heard.text("events/w.jsonl"))["parent_pid"] == process_of(line).pid
        [reason] = [one["reason"] for one in heard.news if one["news"] == "cold"]
        assert "the fork server" in reason
        # What kept the first from importing is still there.
        wait_until(lambda: not any(map(is_alive, fork_servers(line))), "the fork server to end")
        start(line, folder, "go", "warm", path=f"{tmp_path}:{CODE}")
        wait_until(lambda: heard.count("exit") == 2, "its successor to end", limit_s=LIMIT_S)
        assert heard.count("cold") == 2


def test_a_fork_server_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    (tmp_path / "torch.py").write_text("import signal\nsignal.pause()")
    with session(heard) as line:
        begin(line, folder)
        path = f"{tmp_path}:{CODE}"
        start(line, folder, "go", "warm", path=path)
        assert line.ask({"do": "clock"}, LIMIT_S) > 0
        [server] = fork_servers(line)
        line.ask({"do": "stop", "grace_s": LIMIT_S}, LIMIT_S)
        wait_until(lambda: heard.exit_code() == -signal.SIGTERM, "the request to be withdrawn")
        start(line, folder, "go", "warm", path=path)
        line.ask({"do": "kill", "name": "w"}, LIMIT_S)
        wait_until(lambda: heard.exit_code() == -signal.SIGKILL, "the next to be withdrawn")
        # Another command than that of the fork server is never forked from it.
        start(line, folder, "go", "warm")
        wait_until(lambda: heard.exit_code() == 7, "a cold process to end", limit_s=LIMIT_S)
        start(line, folder, "go", "warm", path=path)
        line.ask({"do": "end"}, LIMIT_S)
        assert not is_alive(server)
    assert not (tmp_path / "work").exists()


def test_a_frozen_or_killed_fork_server_leaves_nothing_behind(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line:
        begin(line, folder)
        start(line, folder, "stay", "warm")
        pid = heard.pid()
        [server] = fork_servers(line)
        os.kill(server, signal.SIGSTOP)
        line.ask({"do": "kill", "name": "w"}, LIMIT_S)
        wait_until(lambda: heard.exit_code() == -signal.SIGKILL, "the process to be missed")
        os.kill(server, signal.SIGCONT)
        wait_until(lambda: not is_alive(pid), "the process to be reaped")
        start(line, folder, "stay", "warm")
        wait_until(lambda: heard.text("logs/w.log").count("pid") == 2, "its successor")
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: heard.count("exit") == 2, "it to be killed with its fork server")
        assert heard.exit_code() == -signal.SIGKILL
        start(line, folder, "go", "warm")
        wait_until(lambda: heard.exit_code() == 7, "a cold process to end", limit_s=LIMIT_S)
        assert heard.count("cold") == 1
        line.ask({"do": "end"}, LIMIT_S)
    assert not (tmp_path / "work").exists()


def start_code(line: Session, folder: Path, code: str, name: str = "w") -> None:
    """Start a process that does what a test says."""
    order = {
        "do": "start",
        "name": name,
        "serial": 1,
        "command": [sys.executable, "-c", code],
        "environment": {},
        "directory": "/",
        "spec": {},
        "warm": False,
    }
    line.ask(order, LIMIT_S)


FLOOD = """
import os
while True:
    os.write(1, b"x" * 65535 + b"\\n")
"""


def test_a_log_that_grows_faster_than_it_is_sent_holds_up_neither_orders_nor_other_files(
    tmp_path: Path,
) -> None:
    heard, folder, go_on = Heard(), tmp_path / "work" / "run@m", threading.Event()

    def take(news: dict[str, Any]) -> None:
        # A line as slow as can be: nothing of it is read until the end.
        if news.get("path") == "logs/w.log":
            assert go_on.wait(LIMIT_S)
        heard.take(news)

    line = Session(here(), take)
    try:
        line.open()
        begin(line, folder)
        start_code(line, folder, FLOOD)
        log = folder / "logs" / "w.log"
        wait_until(lambda: log.exists() and log.stat().st_size > 64 << 20, "the flood")
        stop = line.tell({"do": "stop", "grace_s": 0.0})
        kill = line.tell({"do": "kill", "name": "w"})
        # The orders are obeyed although no answer can come.
        wait_until(lambda: not fd_holders(log), "the process to be killed", limit_s=LIMIT_S)
        # Now, for a long log is emptied once all of it has been sent.
        written = log.stat().st_size
        go_on.set()
        line.wait(stop, LIMIT_S)
        line.wait(kill, LIMIT_S)
        wait_until(lambda: heard.exit_code() is not None, "all of it to come", limit_s=LIMIT_S)
        assert len(heard.text("logs/w.log")) == written
    finally:
        go_on.set()
        line.close()


def fd_holders(path: Path) -> list[int]:
    """Processes that have a file open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(entry) == str(path):
                found.append(int(entry.parts[2]))
        except OSError:
            continue
    return found


def test_whole_files_come_in_parts_that_fit_into_a_line(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    size = 3 * MAX_CHUNK_BYTES + 5
    code = f"""
import os, pathlib
folder = pathlib.Path({str(folder)!r}) / "profile"
folder.mkdir()
(folder / "w.json").write_bytes(b"p" * {size})
(folder / "w.empty").write_bytes(b"")
"""
    with session(heard) as line:
        begin(line, folder)
        start_code(line, folder, code)
        wait_until(lambda: heard.exit_code() == 0, "it to end", limit_s=LIMIT_S)
        parts = [one for one in heard.news if one.get("path") == "profile/w.json"]
        assert [(one["first"], one["last"]) for one in parts] == [
            (True, False),
            (False, False),
            (False, False),
            (False, True),
        ]
        assert heard.text("profile/w.json") == "p" * size
        [empty] = [one for one in heard.news if one.get("path") == "profile/w.empty"]
        assert (empty["content"], empty["first"], empty["last"]) == ("", True, True)


def test_files_on_a_machine_are_the_owners_alone(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    code = f"open({str(tmp_path / 'made')!r}, 'w').close()"
    with session(heard) as line:
        begin(line, folder)
        start_code(line, folder, code)
        wait_until(lambda: heard.exit_code() == 0, "it to end", limit_s=LIMIT_S)
        made = [folder.parent, *folder.parent.rglob("*"), tmp_path / "made"]
        assert len(made) > 5
        assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_what_helpers_of_a_process_do_ends_with_the_run(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    code = """
import subprocess
helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("pid", helper.pid, flush=True)
"""
    with session(heard) as line:
        begin(line, folder)
        start_code(line, folder, code)
        helper = heard.pid()
        wait_until(lambda: heard.exit_code() == 0, "it to end", limit_s=LIMIT_S)
        line.ask({"do": "end"}, LIMIT_S)
    wait_until(lambda: not is_alive(helper), "its helper to end")


def test_a_sweep_never_kills_another_process_that_has_the_number_now(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    with session(heard) as line, session(Heard()) as other:
        begin(line, folder)
        lock = folder / ".supervisor"
        note = json.loads(lock.read_text())
        # As if the agent had died, and its number had come to another run's.
        lock.write_text(json.dumps(note | {"pid": process_of(other).pid}))
        with session(Heard()) as third:
            third.ask({"do": "sweep", "folder": str(folder), "token": "none"}, LIMIT_S)
        assert other.ask({"do": "clock"}, LIMIT_S) > 0, "it lives"
        assert line.ask({"do": "clock"}, LIMIT_S) > 0


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("b'@phalanx@{broken\\n'", "what no agent sends"),
        ("b'@phalanx@[1]\\n'", "what no agent sends"),
        ("b'@phalanx@{\\\"x\\\": 1}\\n'", "what no agent sends"),
        ("b'x' * (3 << 20)", "a line of more than 1 MiB"),
    ],
)
def test_a_machine_that_speaks_nonsense_costs_itself_alone(said: str, reason: str) -> None:
    program = f"import os, time; os.write(1, {said}) and time.sleep(600)"
    line = Session(ScriptRoute(here().machine, script=f'exec {sys.executable} -c "{program}"'))
    try:
        with pytest.raises(LaunchError, match=reason):
            line.open()
        assert line.fault is not None
    finally:
        line.close()


def test_nothing_that_a_machine_says_steers_the_terminal() -> None:
    with session(Heard()) as line, pytest.raises(LaunchError) as caught:
        line.ask({"do": "\x1b]0;mine\x07\x9b2J\r"}, LIMIT_S)
    assert str(caught.value).isprintable()
    assert "\\x1b]0;mine" in str(caught.value)
    line = Session(ScriptRoute(here().machine, script="printf '\\033[2Jgone' >&2; exit 255"))
    try:
        with pytest.raises(LaunchError) as caught:
            line.open()
    finally:
        line.close()
    assert str(caught.value).isprintable()


def test_a_controller_that_wakes_up_too_late_learns_why_its_machines_are_gone(
    tmp_path: Path,
) -> None:
    heard, folder = Heard(), tmp_path / "work" / "run@m"
    line = Session(here(), heard.take)
    try:
        line.open()
        begin(line, folder, limit_s=0.3)
        # Orders come to an end, as from a suspended process; pings would come once a second.
        wait_until(lambda: line.fault is not None, "the machine to end", limit_s=LIMIT_S)
        assert line.fault is not None
        assert "it heard nothing of this machine for" in line.fault.reason
        assert "'deadlines.controller_s'" in line.fault.reason
    finally:
        line.close()


def test_ways_ports_and_addresses() -> None:
    with session(Heard()) as line:
        port = line.ask({"do": "listen", "token": "0" * TOKEN_LENGTH}, LIMIT_S)
        order = {"do": "reach", "targets": [["open", "127.0.0.1", port], ["shut", "127.0.0.1", 1]]}
        assert line.ask(order, LIMIT_S) == {"shut": "Connection refused"}
        line.ask({"do": "hush"}, LIMIT_S)
        assert line.ask(order, LIMIT_S).keys() == {"open", "shut"}, "the port is closed"
        line.ask({"do": "hush"}, LIMIT_S)
        assert line.ask({"do": "listen", "token": "0" * TOKEN_LENGTH}, LIMIT_S) > 0
        ports = line.ask({"do": "ports", "address": "127.0.0.1", "count": 5}, LIMIT_S)
        assert len(set(ports)) == 5
        assert line.ask({"do": "resolve", "address": "localhost"}, LIMIT_S) == "127.0.0.1"
        with pytest.raises(LaunchError, match="Cannot assign requested address"):
            line.ask({"do": "resolve", "address": "192.0.2.1"}, LIMIT_S)


def test_versions_of_an_interpreter() -> None:
    with session(Heard()) as line:
        order = {"do": "versions", "python": sys.executable, "names": ["msgspec", "no-such-thing"]}
        found = line.ask(order, LIMIT_S)
        assert found["no-such-thing"] is None
        assert found["msgspec"].count(".") >= 1


def test_a_machine_that_cannot_be_reached_is_one_sentence() -> None:
    route = here()
    broken = type(route)(route.machine.model_copy(update={"python": "/no/such/python"}))
    line = Session(broken)
    try:
        with pytest.raises(LaunchError, match="check 'python' of this machine"):
            line.open()
    finally:
        line.close()
