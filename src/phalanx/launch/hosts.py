"""Hold the machines of one run that have passed the preflight, each with an open session.

Closing a group ends everything that still runs on its machines and removes what the run left there;
a machine that does not answer is tried once more over a new session, and otherwise cleans up by
itself.
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
from phalanx.spec.data import DataSpec
from phalanx.spec.machine import MachineSpec

_log = logging.getLogger(__name__)

_BEGIN_S = 30.0
_END_S = 20.0
_SWEEP_CONNECT_S = 4


@dataclass(frozen=True)
class Host:
    """A machine that can take part.

    Attributes:
        spec: As the pool has it.
        session: The connection to its agent.
        address: Where the others reach it.
        controller: Where it reaches the controller.
        python: The interpreter that runs the processes.
        code: What they find first when they import: this version of Phalanx, and the user's code.
        data: The job's data as it is called there.
        data_root: Where built-in data sets lie there.
        cache_root: Where decoded data is kept there.
        cpus: Cores that a login may run on there.
        folder: The directory of the run there; empty before it begins.
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
        """What tables and messages call it."""
        return self.spec.title


class HostGroup:
    """The machines of one run; a context manager that leaves nothing behind on them.

    Args:
        hosts: By name, in the order of the pool; their sessions are open.
        listen: Address at which the controller is to listen for all of them.
        notes: What is odd about them, though no obstacle; one sentence each.
    """

    def __init__(
        self, hosts: Mapping[str, Host], *, listen: str, notes: Sequence[str] = ()
    ) -> None:
        self.by_name = dict(hosts)
        self.listen = listen
        self.notes = tuple(notes)
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
        with ThreadPoolExecutor(max(1, len(self.by_name))) as threads:
            list(threads.map(self._leave, self.by_name.values()))

    def begin(self, run: str, *, limit_s: float) -> None:
        """Make the directory of a run on every machine.

        Args:
            run: Name of the run.
            limit_s: Silence after which an agent ends everything on its machine.

        Raises:
            LaunchError: A machine is gone, or cannot make the directory.
        """

        def begin(host: Host) -> Host:
            folder = f"{host.spec.workdir}/{run}@{host.name}"
            order: dict[str, object] = {"do": "begin", "folder": folder, "machine": host.name}
            order |= {"token": self._token(host), "limit_s": limit_s}
            made = host.session.ask(order, _BEGIN_S)
            return replace(host, folder=made)

        with ThreadPoolExecutor(max(1, len(self.by_name))) as threads:
            ready = list(threads.map(begin, self.by_name.values()))
        self.by_name = {host.name: host for host in ready}

    def lose(self, name: str, reason: str) -> None:
        """Count a machine as lost, and clean up there if it can be logged in to again."""
        host = self.by_name[name]
        host.session.give_up(reason)
        if name not in self._sweepers and host.folder:
            sweeper = threading.Thread(target=self._sweep, args=(host,), name=f"sweep-{name}")
            self._sweepers[name] = sweeper
            sweeper.start()

    def _token(self, host: Host) -> str:
        """Return what marks the processes on one machine; those on others have another token."""
        return f"{self._secret}@{host.name}"

    def _leave(self, host: Host) -> None:
        session = host.session
        try:
            session.ask({"do": "end"}, _END_S)
        except LaunchError as error:
            self.lose(host.name, session.fault.reason if session.fault else str(error))
            if (sweeper := self._sweepers.get(host.name)) is not None:
                sweeper.join()
        session.close()

    def _sweep(self, host: Host) -> None:
        """Over a new session, do what an agent that was killed or is frozen cannot do."""
        session = Session(replace(host.session.route, connect_s=_SWEEP_CONNECT_S))
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
