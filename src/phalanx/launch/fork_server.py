"""Start the processes of runs on this machine warm, and choose whose fork server forks them.

A run on this machine owns a fork server, or shares one that somebody else owns: a study, a test
session, a program that trains many times. The owner's end ends the fork server, and with it every
process that it forked; a launcher's end ends the processes which that launcher asked for. What is
said to a fork server is in `wire.fork_client`, which serves the machines of a pool as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping

from phalanx.errors import SpecError
from phalanx.wire.fork_client import (
    FORK_IS_POSSIBLE,
    ForkedProcess,
    ForkRefused,
    ForkServer,
    request_fork,
)
from phalanx.wire.forking import ForkRequest, surroundings

_log = logging.getLogger(__name__)

OWN, OFF = "own", "off"


def fork_process(
    address: str, module: str, output: int, variables: Mapping[str, str] | None = None
) -> ForkedProcess:
    """Start `python -m module` warm, with this process's directory, environment and affinity.

    Args:
        address: Address of the fork server.
        module: Module to run.
        output: Descriptor for standard output and standard error.
        variables: Further variables of the process.

    Raises:
        ForkRefused: The fork server is gone, or a fork would differ from a cold start.
    """
    environment = {**os.environ, **(variables or {})}  # noqa: TID251 (what children inherit)
    request = ForkRequest(
        module=module,
        directory=os.getcwd(),
        environment=environment,
        cpus=sorted(os.sched_getaffinity(0)),
        surroundings=surroundings(environment),
    )
    return request_fork(address, request, output).take()


class WarmStart:
    """Warm start of one group of processes, with fallback to cold starts.

    Args:
        setting: `OWN`, `OFF` or the address of a fork server; None: as set by `use_fork_server`.
    """

    def __init__(self, setting: str | None = None) -> None:
        self._setting = setting or _Chosen.setting
        shared = FORK_IS_POSSIBLE and self._setting.startswith("@")
        self._address = self._setting if shared else None
        self._server: ForkServer | None = None

    def prepare(self, num_processes: int) -> None:
        """Begin the imports; for a single process they would cost what they save."""
        if self._setting == OWN and num_processes > 1 and FORK_IS_POSSIBLE:
            self._server = ForkServer()
            # A system error here will recur in the cold start, which reports it.
            with contextlib.suppress(OSError):
                self._server.start()
                self._address = self._server.address

    def fork(
        self, module: str, output: int, variables: Mapping[str, str] | None = None
    ) -> ForkedProcess | None:
        """Start a process warm; None: start it cold."""
        if self._address is None:
            return None
        try:
            return fork_process(self._address, module, output, variables)
        except ForkRefused as refusal:
            _log.info("a process starts cold: %s", refusal)
            return None

    def close(self) -> None:
        """End the fork server of this group and any process of the group that still runs."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._address = None


class _Chosen:
    """Process-wide setting of `use_fork_server`."""

    setting = OWN


def use_fork_server(setting: str) -> None:
    """Set how runs of this process start workers; called by the entry point of a program.

    Args:
        setting: `OWN`: a fork server per run. `OFF`: cold starts only. Otherwise the address of a
        fork server with another owner.

    Raises:
        SpecError: The setting is none of these.
    """
    if setting not in (OWN, OFF) and not setting.startswith("@"):
        raise SpecError(
            f"PHALANX_FORK_SERVER is '{setting}'; set it to own, off, or an address that begins "
            "with @"
        )
    _Chosen.setting = setting


def chosen_fork_server() -> str:
    """Return the setting of `use_fork_server`."""
    return _Chosen.setting


@contextlib.contextmanager
def warm_workers(*, useful: bool = True) -> Iterator[str]:
    """Share one fork server among all runs in the block, unless another was set; yield the setting.

    Args:
        useful: False: nothing in the block can be forked, so none is started.
    """
    before = _Chosen.setting
    if before != OWN or not useful or not FORK_IS_POSSIBLE:
        yield before
        return
    server = ForkServer()
    try:
        # On failure runs fall back to their own fork server or cold starts, which report it.
        with contextlib.suppress(OSError):
            server.start()
            _Chosen.setting = server.address
        yield _Chosen.setting
    finally:
        _Chosen.setting = before
        server.close()
