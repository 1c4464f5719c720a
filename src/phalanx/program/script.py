"""Run the user's script in a greenlet, which takes turns with the training loop.

A greenlet is a second Python stack in the same thread: the loop calls `resume` and gets the
script's next request, the script calls `ask` and gets the loop's answer. Both stay as they are
written, and torch's thread-local state stays with the one thread. A turn costs about a microsecond.
"""

from __future__ import annotations

import mmap
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from greenlet import GreenletExit, greenlet

from phalanx.errors import EngineError, PhalanxError


@dataclass(frozen=True)
class WantEpoch:
    """The script begins an epoch; answered by its number, or by None: there is no more."""


@dataclass(frozen=True)
class WantBatch:
    """The script asks for a batch; answered by a `Turn`, or by None: the epoch is over."""


@dataclass(frozen=True)
class BackwardDone:
    """The gradients of an update are complete; answered by whether the optimiser is to step."""


@dataclass(frozen=True)
class StepEntered:
    """The script has called `step()` of one of its optimisers; answered once it is done."""

    index: int


@dataclass(frozen=True)
class WantTotal:
    """The script reports figures; answered by their sums over all workers."""

    values: list[float]


@dataclass(frozen=True)
class ScriptEnded:
    """The script has ended."""

    error: BaseException | None = None


Request = WantEpoch | WantBatch | BackwardDone | StepEntered | WantTotal | ScriptEnded


class Script:
    """The user's script, up to its next request.

    Args:
        body: Runs it to its end.
        name: For messages.
    """

    def __init__(self, body: Callable[[], object], *, name: str) -> None:
        self.name = name
        self.pending: Request | None = None
        """The last request; None: it has not been started."""
        self._body = body
        self._greenlet = greenlet(self._run)
        self._pid = os.getpid()
        # Memory that copies of this process share with it.
        self._forked = mmap.mmap(-1, 1)

    def resume(self, answer: object = None) -> Request:
        """Answer the script's request, and let it run until the next one.

        Raises:
            EngineError: The script has raised an error, or left by `sys.exit` with a failure.
            PhalanxError: The session has refused something.
        """
        assert not isinstance(self.pending, ScriptEnded), "the script has ended"
        self.pending = self._greenlet.switch(answer)
        if isinstance(self.pending, ScriptEnded) and self.pending.error is not None:
            self._raise(self.pending.error)
        assert self.pending is not None
        return self.pending

    def abandon(self) -> None:
        """End the script where it is, as Ctrl-C would; only its clean-up still runs."""
        self._greenlet.throw(GreenletExit)
        self.pending = ScriptEnded()

    def ask(self, request: Request) -> object:
        """Ask the loop; called by the session, within the script."""
        self.refuse_copies()
        parent = self._greenlet.parent
        assert parent is not None
        # The loop must compute as if the script were not in the middle of something.
        with torch.autocast("cpu", enabled=False), torch.inference_mode(False):
            return parent.switch(request)

    def refuse_copies(self) -> None:
        """Refuse that a copy of this process trains, too; others, such as loaders', do no harm.

        Raises:
            EngineError: One has tried to. It has been ended.
        """
        if os.getpid() != self._pid:
            self._forked[0] = 1
            self._end_copy(1)
        if self._forked[0]:
            raise EngineError(
                f"{self.name} has forked, and the copy has used the session; only the process that "
                "Phalanx started trains, so fork for other work alone"
            )

    def _run(self, _: object) -> ScriptEnded:
        error: BaseException | None = None
        try:
            self._body()
        except BaseException as raised:  # the greenlet's boundary: raised again in the loop
            error = raised
        if os.getpid() != self._pid:
            # A copy that has come to its end must not go on as this worker.
            self._end_copy(_exit_code(error))
        return ScriptEnded(error)

    def _end_copy(self, code: int) -> NoReturn:
        """End this process without the clean-up of the one that it was copied from."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                self.pending = ScriptEnded()
                return
            raise EngineError(f"{self.name} has called sys.exit({error.code!r})") from error
        if isinstance(error, PhalanxError):
            raise error
        if not isinstance(error, Exception):
            raise error
        where = _where(error, self.name)
        raise EngineError(f"{self.name} raised {type(error).__name__}{where}: {error}") from error


def _exit_code(error: BaseException | None) -> int:
    """Return the code that a process ends with, and show its error, as Python would."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0
    traceback.print_exception(error)
    return 1


def run_file(path: Path, args: tuple[str, ...]) -> None:
    """Run a Python file as `python path args...` would, in this process."""
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def _where(error: BaseException, name: str) -> str:
    """Return the innermost line of the script that an error passed through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" in line {line}" if line is not None else ""
