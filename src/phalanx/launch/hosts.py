"""Hold the machines of one run that passed the preflight, each with an open session.

Closing a group ends all its processes and removes the run's files from its machines. An
unresponsive machine is tried once more over a new session; otherwise its agent cleans up after a
timeout.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

from phalanx.agent.session import Session
from phalanx.errors import LaunchError
from phalanx.launch.news_writer import NewsWriter
from phalanx.spec.data import DataSpec
from phalanx.spec.machine import MachineSpec

_log = logging.getLogger(__name__)

_BEGIN_S = 30.0
_END_S = 20.0
_SWEEP_CONNECT_S = 4


@dataclass(frozen=True)
class Host:
    """A machine that takes part in a run.

    Attributes:
        spec: Declaration in the pool.
        session: Connection to its agent.
        address: Address at which other machines reach it.
        controller: Address of the controller as seen from it.
        python: Interpreter of the worker processes.
        code: Directories put first on the import path: this Phalanx, and the user's code.
        data: The job's data under its path on this machine.
        data_root: Directory of built-in data sets on this machine.
        cache_root: Directory of decoded data on this machine.
        cpus: Cores that a login may run on.
        folder: Directory of the run on this machine; empty before `begin`.
    """

    spec: MachineSpec
    session: Session
    address: str
    controller: str
    python: str
    code: tuple[str, ...]
    data: DataSpec
    data_root: str
    cache_root: str
    cpus: tuple[int, ...] = ()
    folder: str = ""

    @property
    def name(self) -> str:
        """Return the name for tables and messages."""
        return self.spec.title


class HostGroup:
    """Machines of one run; a context manager that cleans them up on exit.

    Args:
        hosts: By name, in pool order, with open sessions.
        listen: Address that the controller listens on for all of them.
        notes: Warnings about the machines; one sentence each.
    """

    def __init__(
        self, hosts: Mapping[str, Host], *, listen: str, notes: Sequence[str] = ()
    ) -> None:
        self.by_name = dict(hosts)
        self.listen = listen
        self.notes = tuple(notes)
        self.news = NewsWriter()
        self._secret = secrets.token_hex(16)
        self._sweepers: dict[str, threading.Thread] = {}

    def __enter__(self) -> HostGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In parallel: an unresponsive machine must not delay the cleanup of the others.
        with ThreadPoolExecutor(max(1, len(self.by_name))) as threads:
            list(threads.map(self._leave, self.by_name.values()))
        # Last: the machines' last lines have come by now.
        self.news.close()

    def begin(self, run: str, *, limit_s: float) -> None:
        """Create the run directory on every machine.

        Args:
            run: Name of the run.
            limit_s: Silence of this machine after which an agent ends all processes on its own.

        Raises:
            LaunchError: A machine is gone, or cannot create the directory.
        """

        def begin(host: Host) -> Host:
            # Named by machine, because machines may share a home directory.
            folder = f"{host.spec.workdir}/{run}@{host.name}"
            order: dict[str, object] = {"do": "begin", "folder": folder, "machine": host.name}
            order |= {"token": self._token(host), "limit_s": limit_s}
            made = host.session.ask(order, _BEGIN_S)
            return replace(host, folder=made)

        with ThreadPoolExecutor(max(1, len(self.by_name))) as threads:
            ready = list(threads.map(begin, self.by_name.values()))
        self.by_name = {host.name: host for host in ready}

    def lose(self, name: str, reason: str) -> None:
        """Mark a machine as lost, and clean it up over a new session if possible."""
        host = self.by_name[name]
        host.session.give_up(reason)
        # Without a run directory nothing was started there.
        if name not in self._sweepers and host.folder:
            sweeper = threading.Thread(target=self._sweep, args=(host,), name=f"sweep-{name}")
            self._sweepers[name] = sweeper
            sweeper.start()

    def _token(self, host: Host) -> str:
        """Return the token that marks the run's processes on one machine; unique per machine."""
        return f"{self._secret}@{host.name}"

    def _leave(self, host: Host) -> None:
        session = host.session
        try:
            # Answered only after all processes are gone and their files removed.
            session.ask({"do": "end"}, _END_S)
        except LaunchError as error:
            self.lose(host.name, session.fault.reason if session.fault else str(error))
            if (sweeper := self._sweepers.get(host.name)) is not None:
                sweeper.join()
        session.close()

    def _sweep(self, host: Host) -> None:
        """Clean up over a new session for an agent that was killed or is frozen."""
        route = host.session.route.again(_SWEEP_CONNECT_S)
        if route is None:
            return  # its agent has ended with the line, or will when it finds it silent
        session = Session(route)
        try:
            session.open()
            order = {"do": "sweep", "folder": host.folder, "token": self._token(host)}
            session.ask(order, _END_S)
        except LaunchError as error:
            _log.warning(
                "%s cannot be asked to clean up (%s); it does so by itself when it finds the "
                "controller silent",
                host.name,
                error,
            )
        finally:
            session.close()
