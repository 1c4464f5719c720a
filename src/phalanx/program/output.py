"""Send what the chief's script prints to the controller, which shows it to the user."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from typing_extensions import override

from phalanx.wire.control_client import ControlClient
from phalanx.wire.program import ScriptPrinted
from phalanx.worker.context import WorkerContext

# Of one message: a script may print a whole array.
_MOST_CHARACTERS = 64_000


class _Relay(io.TextIOBase):
    """Write to the log of this process, and whole lines to the controller as well."""

    def __init__(self, log: TextIO, control: ControlClient) -> None:
        self._log = log
        self._control = control
        self._line = ""
        self._pid = os.getpid()

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, text: str) -> int:
        self._log.write(text)
        if os.getpid() != self._pid:
            # A copy of this process, such as a loader's, has no connection of its own.
            return len(text)
        whole, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._control.send(ScriptPrinted(whole[-_MOST_CHARACTERS:]))
        return len(text)

    @override
    def flush(self) -> None:
        self._log.flush()

    @override
    def fileno(self) -> int:
        return self._log.fileno()

    def end(self) -> None:
        """Send what is left without the end of a line."""
        if self._line:
            self._control.send(ScriptPrinted(self._line[-_MOST_CHARACTERS:]))
            self._line = ""


@contextmanager
def relay_output(context: WorkerContext) -> Iterator[None]:
    """Show what this process prints, if it is the chief; the others' is in their logs."""
    if context.spec.role != "worker" or context.spec.rank != 0:
        yield
        return
    before = sys.stdout
    relay = _Relay(before, context.control)
    sys.stdout = relay
    try:
        yield
    finally:
        sys.stdout = before
        relay.end()
        before.flush()
