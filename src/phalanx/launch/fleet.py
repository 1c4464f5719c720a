"""The machines of one run that have passed the preflight, each with an open line.

Closing a fleet ends whatever still runs on its machines and removes what the run left there; a
machine that does not answer is tried once more over a new line, and otherwise cleans up by itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

from phalanx.errors import LaunchError
from phalanx.launch.session import Session
from phalanx.spec.data import DataSpec
from phalanx.spec.machine import MachineSpec

_log = logging.getLogger(__name__)

_BEGIN_S = 30.0
_END_S = 20.0
_SWEEP_CONNECT_S = 4


@dataclass(frozen=True)
class ReadyMachine:
    """A machine that can take part.

    Attributes:
        spec: As the pool has it.
        session: The line to it.
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


class Fleet:
    """Machines for one run; a context manager that leaves nothing behind on them.

    Args:
        machines: By name, in the order of the pool; their sessions are open.
        listen: Address at which the controller is to listen for all of them.
        notes: What is odd about them, though no obstacle; one sentence each.
    """

    def __init__(
        self, machines: Mapping[str, ReadyMachine], *, listen: str, notes: Sequence[str] = ()
    ) -> None:
        self.machines = dict(machines)
        self.listen = listen
        self.notes = tuple(notes)
        self._secret = secrets.token_hex(16)
        self._sweepers: dict[str, threading.Thread] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ThreadPoolExecutor(max(1, len(self.machines))) as threads:
            list(threads.map(self._leave, self.machines.values()))

    def begin(self, run: str, *, limit_s: float) -> None:
        """Make the directory of a run on every machine.

        Args:
            run: Name of the run.
            limit_s: Silence after which a machine ends everything.

        Raises:
            LaunchError: A machine is gone, or cannot make the directory.
        """

        def begin(machine: ReadyMachine) -> ReadyMachine:
            folder = f"{machine.spec.workdir}/{run}@{machine.name}"
            order: dict[str, object] = {"do": "begin", "folder": folder, "machine": machine.name}
            order |= {"token": self._token(machine), "limit_s": limit_s}
            made = machine.session.ask(order, _BEGIN_S)
            return replace(machine, folder=made)

        with ThreadPoolExecutor(max(1, len(self.machines))) as threads:
            ready = list(threads.map(begin, self.machines.values()))
        self.machines = {machine.name: machine for machine in ready}

    def lose(self, name: str, reason: str) -> None:
        """Count a machine as lost, and clean up there if a new line can be had."""
        machine = self.machines[name]
        machine.session.give_up(reason)
        if name not in self._sweepers and machine.folder:
            sweeper = threading.Thread(target=self._sweep, args=(machine,), name=f"sweep-{name}")
            self._sweepers[name] = sweeper
            sweeper.start()

    def _token(self, machine: ReadyMachine) -> str:
        """By what the processes on one machine are known; those on others have another."""
        return f"{self._secret}@{machine.name}"

    def _leave(self, machine: ReadyMachine) -> None:
        session = machine.session
        if session.fault is None:
            try:
                session.ask({"do": "end"}, _END_S)
            except LaunchError as error:
                session.give_up(str(error))
        if session.fault is not None:
            self.lose(machine.name, session.fault)
            if (sweeper := self._sweepers.get(machine.name)) is not None:
                sweeper.join()
        session.close()

    def _sweep(self, machine: ReadyMachine) -> None:
        """Over a new line, do what a supervisor that was killed or is frozen cannot do."""
        session = Session(replace(machine.session.route, connect_s=_SWEEP_CONNECT_S))
        try:
            session.open()
            order = {"do": "sweep", "folder": machine.folder, "token": self._token(machine)}
            session.ask(order, _END_S)
        except LaunchError as error:
            _log.warning(
                "%s cannot be asked to clean up (%s); it does so by itself when it finds the "
                "controller silent",
                machine.name,
                error,
            )
        finally:
            session.close()
