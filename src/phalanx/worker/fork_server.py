"""Fork server, `python -m phalanx.worker.fork_server`: import once, fork once per request.

Started by `launch.fork_server`, which passes a listening socket and keeps its standard input open
as a lifeline. A forked process runs the same `python -m` module as a cold one, with the directory,
variables, module path, cores and streams of its request; user code is imported there. Forking is
refused while another thread or a foreign socket exists, since neither survives a fork intact; the
launcher then starts the process cold.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.spec.kinds import built_in_modules
from phalanx.wire.forking import (
    THREAD_VARIABLES,
    ForkRequest,
    bounded_spin,
    difference,
    peer_user,
    receive_request,
    send,
    surroundings,
)
from phalanx.worker.lifeline import adopt_orphans, die_with_parent

# Modules that every role of a torch process needs; never user code or other frameworks.
PRELOADED = (
    "phalanx.worker.bootstrap",
    "phalanx.worker.roles",
    "phalanx.backends.ddp.roles",
    *built_in_modules(),
)
# Imported by torch itself in the first backward pass of a process.
_LATER = ("torch.fx.experimental.symbolic_shapes",)
_LIFELINE = 0
# A launcher sends its request in one go; a frozen one must not hold others up.
_REQUEST_S = 5.0
# Generations of helpers of helpers.
_ADOPTIONS = 100


@dataclass
class _Forked:
    """A process, and the connection of the launcher that requested it."""

    pid: int
    pidfd: int
    connection: socket.socket
    abandoned: bool = False


class ForkingLoop:
    """Answer requests until the owner is gone; in a forked process `serve` returns.

    Args:
        listener: Where launchers connect.
        own: Environment of this process; requests from another one are refused.
    """

    def __init__(self, listener: socket.socket, own: dict[str, object]) -> None:
        self._listener = listener
        self._own = own
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._selector.register(_LIFELINE, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._waiting: set[socket.socket] = set()
        self._forked: dict[int, _Forked] = {}

    def serve(self) -> tuple[ForkRequest, list[int]]:
        """Fork on request; returns in each forked process, with its request and streams."""
        while True:
            # Blocks without a limit: the owner's end is an event here, and so is every child's.
            for key, _ in self._selector.select():
                source = key.fileobj
                if source == _LIFELINE:
                    if not os.read(_LIFELINE, 1024):
                        self._end_adopted()
                        # Children have this process as their parent and are killed with it.
                        os._exit(0)
                elif source is self._listener:
                    self._accept()
                elif isinstance(source, socket.socket):
                    request = self._hear(source)
                    if request is not None:
                        return request
                elif source in self._forked:
                    self._report(self._forked[source])

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if peer_user(connection) != os.getuid():
            connection.close()
            return
        connection.settimeout(_REQUEST_S)
        self._waiting.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> tuple[ForkRequest, list[int]] | None:
        """Read what a launcher sent; return only in the process that was forked for it."""
        if connection not in self._waiting:
            self._abandon(connection)
            return None
        self._waiting.discard(connection)
        received = None
        # A launcher killed in mid-request breaks its own connection; others go on.
        with contextlib.suppress(OSError):
            received = receive_request(connection)
        if received is None:
            self._close(connection)
            return None
        request, streams = received
        if self._fork(connection, request):
            return request, streams
        for stream in streams:
            os.close(stream)
        return None

    def _fork(self, connection: socket.socket, request: ForkRequest) -> bool:
        """Fork unless that is unsafe; return whether this is the forked process."""
        reason = self._reason_against(request)
        try:
            pid = os.fork() if reason is None else -1
        except OSError as error:
            # No room for one more process; running ones must not be lost for that.
            reason = f"the system refuses to fork ({error.strerror})"
        if reason is not None:
            with contextlib.suppress(OSError):
                send(connection, {"refused": reason})
            self._close(connection)
            return False
        if pid == 0:
            # First of all: whatever it runs, it must not outlive the fork server.
            die_with_parent(self._pid)
            self._let_go()
            connection.close()
            return True
        child = _Forked(pid, os.pidfd_open(pid), connection)
        self._forked[child.pidfd] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ)
        try:
            send(connection, {"pid": pid, "parent_pid": os.getpid()}, [child.pidfd])
        except OSError:
            self._abandon(connection)
        return False

    def _reason_against(self, request: ForkRequest) -> str | None:
        """Return why a fork would differ from a cold start; None: it would not."""
        differing = difference(self._own, request.surroundings)
        if differing is not None:
            return f"the launcher has other {differing} than the fork server"
        return unsafe_to_fork({key.fd for key in self._selector.get_map().values()})

    def _abandon(self, connection: socket.socket) -> None:
        """Kill the process of a launcher that is gone; it is reaped like any other."""
        for child in self._forked.values():
            if child.connection is connection and not child.abandoned:
                child.abandoned = True
                # It may have ended in the same moment.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        self._close(connection)

    def _report(self, child: _Forked) -> None:
        """Reap an ended process and report its exit code to the launcher."""
        _, status = os.waitpid(child.pid, 0)
        del self._forked[child.pidfd]
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        if not child.abandoned:
            with contextlib.suppress(OSError):
                send(child.connection, {"exit_code": os.waitstatus_to_exitcode(status)})
            self._close(child.connection)
        if not self._forked:
            # Before that they may belong to a process that still runs.
            self._end_adopted()

    def _end_adopted(self) -> None:
        """Kill what ended processes have left: the system makes it children of this one."""
        known = {child.pid for child in self._forked.values()}
        for _ in range(_ADOPTIONS):
            found = adopted_children() - known
            if not found:
                return
            for pid in found:
                # A helper's own children are adopted when it ends, and found in the next round.
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def _close(self, connection: socket.socket) -> None:
        # The end of a process and of its launcher can come out of the same `select`.
        if connection.fileno() != -1:
            self._selector.unregister(connection)
            connection.close()

    def _let_go(self) -> None:
        """Close in a forked process what belongs to the fork server and to its siblings.

        A connection that stayed open here would hide from the fork server that a launcher is gone.
        """
        self._selector.close()
        self._listener.close()
        for connection in self._waiting:
            connection.close()
        for child in self._forked.values():
            child.connection.close()
            os.close(child.pidfd)


def adopted_children() -> set[int]:
    """Return the children of this process's only thread, those among them that it never forked."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return set()  # a kernel without this list
    return set(map(int, text.split()))


def unsafe_to_fork(own: set[int]) -> str | None:
    """Return what a fork would break: another thread, or a socket that is not the server's."""
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        return f"{num_threads - 1} more threads run in the fork server"
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of this very listing is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if int(name) not in own and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return f"descriptor {name} of the fork server is a socket of a library"
    return None


@dataclass(frozen=True)
class _Loaded:
    """State left by imports that a forked process needs."""

    variables: dict[str, str]
    """Set by libraries while they were imported, as they would be in a cold process."""
    path: list[str]
    """Module path without the directory and the PYTHONPATH of this process."""


def _preload() -> _Loaded:
    before = dict(os.environ)
    own = before.get("PYTHONPATH", "").split(os.pathsep)
    base = [
        one
        for one in (sys.path if sys.flags.safe_path else sys.path[1:])
        if one not in own or one.startswith((sys.prefix, sys.base_prefix))
    ]
    for name in PRELOADED:
        importlib.import_module(name)
    for name in _LATER:
        # A torch that has no such module does not need it.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    # Objects of the imports stay where they are: a collection in a child would copy their pages.
    gc.collect()
    gc.freeze()
    return _Loaded(variables, base)


def _become(request: ForkRequest, streams: list[int], loaded: _Loaded) -> None:
    """Set up a forked process as a cold one is when its first line runs."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.sched_setaffinity(0, request.cpus)
    os.chdir(request.directory)
    environment = loaded.variables | request.environment
    # Nothing that belongs to the fork server may remain.
    os.environ.clear()
    os.environ.update(environment)
    named = environment.get("PYTHONPATH", "")
    # An empty entry means the directory, but an empty variable means none.
    own = named.split(os.pathsep) if named else []
    first = [] if sys.flags.safe_path else [request.directory]
    sys.path[:] = [*first, *dict.fromkeys([*map(os.path.abspath, own), *loaded.path])]
    importlib.invalidate_caches()
    # Unseeded draws must differ between processes.
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()


def main() -> None:
    """Serve as fork server; in each forked process run the requested module."""
    listening, owner = int(sys.argv[1]), int(sys.argv[2])
    if owner:
        die_with_parent(owner)
    adopt_orphans()
    own = surroundings(os.environ)
    # Libraries that count their threads when they are loaded start none; `limit_threads` raises
    # the counts in each process.
    os.environ.update({**bounded_spin(os.environ), **dict.fromkeys(THREAD_VARIABLES, "1")})
    loaded = _preload()
    with socket.socket(fileno=listening) as listener:
        request, streams = ForkingLoop(listener, own).serve()
    _become(request, streams, loaded)
    sys.argv = [request.module]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
