"""Start the process of one trial on its core set, read its messages, and end it.

The process has a separate session, so Ctrl-C reaches the study alone. It reads its order from
standard input, which stays open: when the study exits for any reason, the trial sees the end of
input and ends itself and its workers.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from phalanx.errors import LaunchError
from phalanx.records.log import read_tail
from phalanx.records.study import Trial
from phalanx.study.messages import News, RunBegun, RunEnded, RunMoved, TrialOrder
from phalanx.study.places import TrialPlace
from phalanx.study.stopping import Planned

COMMAND = (sys.executable, "-m", "phalanx.cli.trial")
_LAST_LINES = 3


@dataclass(frozen=True)
class TrialAssignment:
    """A trial, with the parameters of its process."""

    planned: Planned
    settings: dict[str, str]
    place: TrialPlace
    order: TrialOrder
    log: Path
    """Log file for the output of the process."""
    lock: int
    """Descriptor that the process inherits and keeps open until it exits."""


class TrialProcess:
    """A running trial."""

    def __init__(self, assignment: TrialAssignment, command: Sequence[str] = COMMAND) -> None:
        self.planned = assignment.planned
        self.place = assignment.place
        self.share = 0.0
        self.activity = "starting"
        self.run: str | None = None
        self._assignment = assignment
        self._command = command
        self._decoder: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)
        self._ended: RunEnded | None = None
        self._rest = b""
        self._child: subprocess.Popen[bytes] | None = None
        self._wall_s = 0.0
        self._begun_s = self._moved_s = 0.0
        self._given_up: str | None = None

    def start(self) -> None:
        """Start the process and send it the order.

        Raises:
            LaunchError: The system refuses a new process.
        """
        self._wall_s, self._begun_s = time.time(), time.monotonic()
        self._moved_s = self._begun_s
        with self._assignment.log.open("ab") as log:
            try:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(self._assignment.lock,),
                )
            except OSError as error:
                raise LaunchError(
                    f"cannot start a trial with {self._command[0]}: {error.strerror}"
                ) from error
        # A process that exited at once breaks the pipe; `finish` reports its exit code.
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._child.stdin).write(msgspec.json.encode(self._assignment.order) + b"\n")
            _pipe(self._child.stdin).flush()

    @property
    def output(self) -> BinaryIO:
        """The pipe of messages; readable or at its end."""
        assert self._child is not None
        return _pipe(self._child.stdout)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    @property
    def still_s(self) -> float:
        """Seconds since the run last moved: trained, or began something else."""
        return time.monotonic() - self._moved_s

    @property
    def span(self) -> tuple[float, float]:
        """Return start and present time, in wall time like the journal."""
        return self._wall_s, self._wall_s + self.elapsed_s

    @property
    def lost_machines(self) -> list[str]:
        """Machines that the ended run has lost, or could not use."""
        return self._ended.lost_machines if self._ended is not None else []

    def hear(self) -> bool:
        """Read messages without blocking; False once the process has closed its end."""
        chunk = self.output.read1(1 << 16)  # type: ignore[attr-defined]  # a BufferedReader
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            # A library may print to standard output before the process redirects it: not a message.
            with contextlib.suppress(msgspec.DecodeError):
                self._take(self._decoder.decode(line))
        return bool(chunk)

    def finish(self, limit_s: float) -> Trial:
        """Wait for the process, which has closed its output, and return the ended trial."""
        child = self._close(limit_s)
        code = self._ended.exit_code if self._ended is not None else child.returncode or 1
        cause = None if code == 0 else self._given_up or self._cause(child.returncode)
        return Trial(
            cell=self.planned.cell,
            settings=self._assignment.settings,
            seed=self.planned.seed,
            repeat=self.planned.repeat,
            state="finished" if code == 0 else "failed",
            run=self.run,
            cause=cause,
            elapsed_s=self.elapsed_s,
            cores=list(self.place.cores),
            machines=list(self.place.without(self.lost_machines).machines),
            wall_s=self._wall_s,
            exit_code=code,
        )

    def give_up(self, limit_s: float) -> None:
        """End a run that has not moved for `limit_s`; the process closes its output soon after.

        Called again while it does not: it is killed then, and its workers end by their lifelines.
        """
        if self._given_up is not None:
            if self._child is not None:
                self._child.kill()
            return
        self._given_up = (
            f"the run had not moved for {limit_s:g} s (trial_limit): {self.share:.1%} done, "
            f"{self.activity}"
        )
        # From now on it has to end: give it time to do so.
        self._moved_s = time.monotonic()
        self.interrupt()

    @property
    def is_given_up(self) -> bool:
        """Whether it was told to end because it did not move."""
        return self._given_up is not None

    def interrupt(self) -> None:
        """Signal the process to end its run."""
        if self._child is not None and self._child.poll() is None:
            # A stopped process handles SIGTERM only once it is continued.
            self._child.send_signal(signal.SIGTERM)
            self._child.send_signal(signal.SIGCONT)

    def end(self, limit_s: float) -> None:
        """Wait for the process after `interrupt`, and kill it if it takes too long."""
        if self._child is not None:
            self._close(limit_s)

    def _close(self, limit_s: float) -> subprocess.Popen[bytes]:
        child = self._child
        assert child is not None
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            # Its workers notice through their lifelines and end themselves.
            child.kill()
            child.wait(limit_s)
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(BrokenPipeError):
                _pipe(pipe).close()
        return child

    def _take(self, news: News) -> None:
        match news:
            case RunBegun():
                self.run = news.run
            case RunMoved():
                is_still = (self.share, self.activity) == (news.share, news.activity)
                self.share, self.activity = news.share, news.activity
                if not is_still and self._given_up is None:
                    self._moved_s = time.monotonic()
            case RunEnded():
                self._ended = news

    def _cause(self, code: int) -> str:
        if self._ended is not None and self._ended.cause:
            return self._ended.cause
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        tail = read_tail(self._assignment.log, _LAST_LINES).splitlines()
        said = "; ".join(line.strip() for line in tail if line.strip())
        return f"the process of the trial {how}" + (f": {said}" if said else "")


def _pipe(pipe: object) -> BinaryIO:
    assert pipe is not None
    return pipe  # type: ignore[return-value]  # Popen types its pipes as IO[bytes]
