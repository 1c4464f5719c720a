"""What runs on a machine during a run: starts its processes, sends home what they write, cleans up.

`launch.supervisor` sends this very file over ssh, so nothing needs to be installed there and both
sides always are of the same version; hence only the standard library is imported. Orders come as
one JSON object per line, some followed by bytes; news go out likewise behind a marker, because
login scripts may print. When the input ends, or nothing was heard for too long, or this process is
asked to end, it kills every process of the run on this machine and removes their directory: no way
out leaves anything behind.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from types import FrameType

MARKER = "@phalanx@"
RUN_VARIABLE = "PHALANX_RUN"
"""In the environment of every process of a run; by it they are found, and their children."""
LOCK = ".supervisor"
_TICK_S = 0.2
_ALIVE_S = 1.0
_MAX_CHUNK_BYTES = 1 << 17
_KILL_S = 3.0
_CONNECT_S = 4.0
# Orders before the run begins may take a while; afterwards the caller says what is too long.
_PATIENCE_S = 120.0
_MAX_SAID = 4000
_MIRRORED = ("events", "logs")
_WHOLE = ("profile",)
_COMPLETE = ".complete"
# Asked of another interpreter than this one where an environment was built.
_VERSIONS = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


class Child:
    """A process of the run."""

    def __init__(self, name: str, serial: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.serial = serial
        self.process = process

    def signal(self, number: int) -> None:
        """Send a signal to the process and to what it has started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Supervisor:
    """The processes of one run on this machine."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        self._children: dict[str, Child] = {}
        self._sent: dict[Path, int] = {}
        self._folder: Path | None = None
        self._lock: int | None = None
        self._made_parent = False
        self._token = ""
        self._heard = time.monotonic()
        self._limit_s = _PATIENCE_S
        self._kill_at: float | None = None
        self._said_alive = 0.0
        self._saying = threading.Lock()
        self._listener: socket.socket | None = None
        self._ending = threading.Lock()

    def run(self) -> None:
        """Do what is asked until the input ends."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._say({"news": "hello", **_hello()})
        threading.Thread(target=self._read, args=(sys.stdin.buffer,), daemon=True).start()
        threading.Thread(target=self._guard, daemon=True).start()
        while True:
            order = None
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=_TICK_S)
                if order is None:
                    self._end_all()
                self._obey(*order)  # type: ignore[misc]  # None has ended the process
            self._tick()

    def _read(self, stream: BufferedReader) -> None:
        while line := stream.readline():
            self._heard = time.monotonic()
            order = json.loads(line)
            content = bytearray()
            while len(content) < order.get("bytes", 0):
                part = stream.read1(min(1 << 16, order["bytes"] - len(content)))
                if not part:
                    break
                content += part
                self._heard = time.monotonic()
            if order["do"] != "ping":
                self._orders.put((order, bytes(content)))
        self._orders.put(None)
        # The main thread may be stuck sending to whoever is gone.
        time.sleep(_TICK_S * 2)
        self._end_all()

    def _guard(self) -> None:
        while True:
            time.sleep(_TICK_S)
            if time.monotonic() - self._heard > self._limit_s:
                self._end_all()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end_all()

    def _end_all(self) -> None:
        """Kill everything, remove everything, and leave."""
        if not self._ending.acquire(blocking=False):
            time.sleep(_KILL_S * 4)
        self._clean()
        os._exit(0)

    def _clean(self) -> None:
        if self._token:
            kill_marked(self._token)
        if self._folder is not None:
            remove(self._folder, with_parent=self._made_parent)

    def _obey(self, order: dict[str, Any], content: bytes) -> None:
        actions: dict[str, Callable[[], object]] = {
            "listen": self._listen,
            "bindable": lambda: _bindable(order["address"]),
            "ports": lambda: _free_ports(order["address"], order["count"]),
            "exists": lambda: Path(order["path"]).expanduser().exists(),
            "unpack": lambda: unpack(content, Path(order["path"]).expanduser()),
            "begin": lambda: self._begin(order),
            "start": lambda: self._start(order),
            "kill": lambda: self._kill(order["name"]),
            "stop": lambda: self._stop(order["grace_s"]),
            "sweep": lambda: sweep(Path(order["folder"]).expanduser(), order["token"]),
            "end": self._finish,
        }
        slow: dict[str, Callable[[], object]] = {
            "packages": lambda: versions(order["python"], order["names"]),
            "build": lambda: build(Path(order["root"]).expanduser(), order["versions"]),
            "reach": lambda: reach(order["targets"]),
            "run": lambda: run_command(order),
        }
        if order["do"] in slow:
            answer = (order["id"], slow[order["do"]])
            threading.Thread(target=self._answer, args=answer, daemon=True).start()
        else:
            self._answer(order["id"], actions[order["do"]])
        if order["do"] == "end":
            os._exit(0)

    def _answer(self, number: int, action: Callable[[], object]) -> None:
        try:
            self._say({"news": "answer", "id": number, "ok": action()})
        except Exception as error:  # the process boundary: the asker is told, and may go on
            self._say({"news": "answer", "id": number, "error": f"{type(error).__name__}: {error}"})

    def _begin(self, order: dict[str, Any]) -> str:
        """Make the directory of the run here; from now on silence of the asker ends everything."""
        folder = Path(order["folder"]).expanduser()
        self._made_parent = not folder.parent.exists()
        folder.parent.mkdir(parents=True, exist_ok=True)
        for other in folder.parent.glob(f"*@{order['machine']}"):
            _sweep_abandoned(other)
        for part in ("events", "logs", "checkpoints"):
            (folder / part).mkdir(parents=True)
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        note = {"pid": os.getpid(), "token": order["token"], "made_parent": self._made_parent}
        os.write(self._lock, json.dumps(note).encode())
        self._folder, self._token = folder, order["token"]
        self._limit_s = order["limit_s"]
        return str(folder)

    def _start(self, order: dict[str, Any]) -> int:
        """Start a process with its spec on standard input, which stays open as its lifeline."""
        assert self._folder is not None, "start comes after begin"
        name = order["name"]
        variables = {**os.environ, **order["environment"]}  # noqa: TID251 (what children inherit)
        variables[RUN_VARIABLE] = self._token
        with (self._folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                order["command"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(order["directory"]).expanduser(),
                env=variables,
                start_new_session=True,
            )
        self._children[name] = Child(name, order["serial"], process)
        spec = {**order["spec"], "parent_pid": os.getpid()}
        assert process.stdin is not None
        # A process that died at once breaks the pipe; its exit code is the news.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            process.stdin.flush()
        return process.pid

    def _kill(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            child.signal(signal.SIGKILL)
            child.process.wait(_KILL_S)

    def _stop(self, grace_s: float) -> None:
        """Ask every process to end; whoever has not after that long is killed by `_tick`."""
        for child in self._children.values():
            child.signal(signal.SIGTERM)
            # A frozen process sees no signal but SIGKILL until it goes on.
            child.signal(signal.SIGCONT)
        self._kill_at = time.monotonic() + grace_s

    def _finish(self) -> None:
        """The last news, then nothing is left here."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        kill_marked(self._token)
        for child in self._children.values():
            child.process.wait(_KILL_S)
        self._tick()
        self._clean()

    def _tick(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        # First who has ended, then what was written: the last words come before the exit code.
        ended = [child for child in self._children.values() if child.process.poll() is not None]
        self._send_files()
        for child in ended:
            self._send_whole(child.name)
            del self._children[child.name]
            with contextlib.suppress(BrokenPipeError):
                assert child.process.stdin is not None
                child.process.stdin.close()
            code = child.process.returncode
            self._say({"news": "exit", "name": child.name, "serial": child.serial, "code": code})
        if now - self._said_alive >= _ALIVE_S:
            self._said_alive = now
            self._say({"news": "alive"})

    def _send_files(self) -> None:
        """Send what has been appended to the files that are mirrored."""
        if self._folder is None:
            return
        for part in _MIRRORED:
            for path in sorted((self._folder / part).glob("*")):
                while self._send_more(path):
                    pass

    def _send_more(self, path: Path) -> bool:
        """Send the next chunk of a file; whether there may be more."""
        assert self._folder is not None
        start = self._sent.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            chunk = file.read(_MAX_CHUNK_BYTES)
        if chunk:
            self._sent[path] = start + len(chunk)
            content = base64.b64encode(chunk).decode()
            where = str(path.relative_to(self._folder))
            self._say({"news": "more", "path": where, "content": content})
        return len(chunk) == _MAX_CHUNK_BYTES

    def _send_whole(self, name: str) -> None:
        """Send the files of an ended process that are written in one stroke."""
        assert self._folder is not None
        for part in _WHOLE:
            for path in (self._folder / part).glob(f"{name}.*"):
                content = base64.b64encode(path.read_bytes()).decode()
                where = str(path.relative_to(self._folder))
                self._say({"news": "whole", "path": where, "content": content})

    def _say(self, news: dict[str, Any]) -> None:
        data = (MARKER + json.dumps(news) + "\n").encode()
        # Whoever listened may be gone; the end of the input will say so.
        with self._saying, contextlib.suppress(OSError):
            while data:
                data = data[os.write(sys.stdout.fileno(), data) :]

    def _listen(self) -> int:
        """Accept and close connections, so that others can see whether they get here."""
        if self._listener is None:
            self._listener = socket.create_server(("", 0))
            accept = threading.Thread(target=_accept, args=(self._listener,), daemon=True)
            accept.start()
        port: int = self._listener.getsockname()[1]
        return port


def reach(targets: list[list[Any]]) -> dict[str, str]:
    """Connect to every (name, address, port) at once; the reasons of those that failed."""
    reasons: dict[str, str] = {}

    def attempt(name: str, address: str, port: int) -> None:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_S).close()
        except OSError as error:
            reasons[name] = error.strerror or str(error)

    threads = [threading.Thread(target=attempt, args=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reasons


def run_command(order: dict[str, Any]) -> dict[str, Any]:
    """Run a command to its end; its code and the last of what it said."""
    variables = {**os.environ, **order["environment"]}  # noqa: TID251 (what it inherits)
    done = subprocess.run(
        [os.path.expanduser(word) for word in order["command"]],
        input=order.get("input", "").encode(),
        capture_output=True,
        timeout=order["limit_s"],
        env={name: os.path.expanduser(value) for name, value in variables.items()},
        check=False,
    )
    return {
        "code": done.returncode,
        "said": done.stdout.decode(errors="replace")[-_MAX_SAID:],
        "complained": done.stderr.decode(errors="replace")[-_MAX_SAID:],
    }


def versions(python: str, names: list[str]) -> dict[str, str | None]:
    """What an interpreter has installed; None for what it lacks."""
    done = subprocess.run(
        [python, "-c", _VERSIONS, *names], capture_output=True, timeout=_PATIENCE_S, check=True
    )
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def build(root: Path, wanted: dict[str, str]) -> str:
    """Build an environment with these versions, unless it is there; returns its interpreter."""
    lines = sorted(f"{name}=={version.partition('+')[0]}" for name, version in wanted.items())
    key = hashlib.sha256("\n".join([sys.version, *lines]).encode()).hexdigest()[:24]
    folder = root / key
    python = str(folder / "bin" / "python")
    root.mkdir(parents=True, exist_ok=True)
    # Homes may be shared between machines: one builds, the others wait.
    with (root / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run_or_say([sys.executable, "-m", "venv", str(folder)])
            _run_or_say([python, "-m", "pip", "install", "--quiet", *lines])
            (folder / _COMPLETE).touch()
    return python


def _run_or_say(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"code {done.returncode}"
        raise RuntimeError(f"`{' '.join(command[:5])} ...` failed: {last}")


def unpack(content: bytes, folder: Path) -> bool:
    """Unpack an archive in one stroke; False: somebody has done so before."""
    if folder.exists():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Homes may be shared between machines, and several may unpack at once.
    temporary = folder.parent / f".{folder.name}-{socket.gethostname()}-{os.getpid()}"
    archive = temporary.with_suffix(".zip")
    try:
        archive.write_bytes(content)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(temporary)
        with contextlib.suppress(OSError):  # another was quicker
            temporary.rename(folder)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def sweep(folder: Path, token: str) -> None:
    """Do what a supervisor that is dead or frozen cannot do any more."""
    note: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        note = json.loads((folder / LOCK).read_text())
        if b"phalanx-supervisor" in Path(f"/proc/{note['pid']}/cmdline").read_bytes():
            os.kill(note["pid"], signal.SIGKILL)
    kill_marked(token)
    remove(folder, with_parent=note.get("made_parent", False))


def _sweep_abandoned(folder: Path) -> None:
    """Remove the directory of an earlier run if its supervisor was killed."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note = json.loads(os.read(descriptor, 4096))
    except (OSError, ValueError):
        return
    finally:
        os.close(descriptor)
    kill_marked(note["token"])
    remove(folder)


def kill_marked(token: str) -> None:
    """Kill every process that has this run in its environment, until none is left."""
    giving_up = time.monotonic() + _KILL_S
    while (found := _marked(token)) and time.monotonic() < giving_up:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _marked(token: str) -> list[int]:
    mark = f"{RUN_VARIABLE}={token}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                # Dead ones that nobody has waited for have no environment any more.
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def remove(folder: Path, *, with_parent: bool = False) -> None:
    """Remove a directory, and the one around it if that was made for it and is empty."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        # A process that is dying has written something meanwhile.
        time.sleep(0.05)
    if with_parent:
        with contextlib.suppress(OSError):  # others are using it
            folder.parent.rmdir()


def _hello() -> dict[str, Any]:
    came_from = os.environ.get("SSH_CONNECTION", "").split()  # noqa: TID251 (sshd's message)
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "home": str(Path.home()),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "cpus": sorted(os.sched_getaffinity(0)),
        "came_from": came_from[0] if came_from else "",
    }


def _bindable(address: str) -> str:
    """The address in numbers, if it is this machine's own."""
    found = socket.gethostbyname(address)
    with socket.socket() as probe:
        probe.bind((found, 0))
    return found


def _free_ports(address: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((address, 0))
        return [probe.getsockname()[1] for probe in probes]


def _accept(listening: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            connection.close()


if __name__ == "__main__":
    Supervisor().run()
