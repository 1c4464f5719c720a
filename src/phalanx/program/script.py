"""Run the user's script in a greenlet, which takes turns with the training loop.

A greenlet is a second Python stack in the same thread: the loop calls `resume` and gets the
script's next request, the script calls `ask` and gets the loop's answer. Both stay as they are
written, and torch's thread-local state stays with the one thread. A turn costs about a microsecond.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from greenlet import greenlet

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
class ScriptEnded:
    """The script has ended."""

    error: BaseException | None = None


Request = WantEpoch | WantBatch | BackwardDone | StepEntered | ScriptEnded


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

    def ask(self, request: Request) -> object:
        """Ask the loop; called by the session, within the script."""
        parent = self._greenlet.parent
        assert parent is not None
        # The loop must compute as if the script were not in the middle of something.
        with torch.autocast("cpu", enabled=False), torch.inference_mode(False):
            return parent.switch(request)

    def _run(self, _: object) -> ScriptEnded:
        try:
            self._body()
        except BaseException as error:  # the greenlet's boundary: raised again in the loop
            return ScriptEnded(error)
        return ScriptEnded()

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
