"""Execute one trial of a study in a separate process: `python -m phalanx.cli.trial`.

Started by `study.process`, not by users. One order arrives on standard input, which stays open as
a lifeline. Messages go to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import ExitCode, PhalanxError
from phalanx.study.messages import News, RunBegun, RunEnded, RunMoved, TrialOrder

if TYPE_CHECKING:
    from phalanx.control.progress import Observer
    from phalanx.launch.base import PoolRequest

# From losing the study until the process exits without having ended its workers one by one; their
# lifelines end them.
_WIND_DOWN_S = 20.0
_REPORT_EVERY_S = 0.5


def main() -> int:
    """Execute the order on standard input; returns the exit code."""
    order = msgspec.json.decode(_read_line(sys.stdin.fileno()), type=TrialOrder)
    os.sched_setaffinity(0, order.cores)
    _end_with_study(sys.stdin.fileno())
    messages = _MessagePipe(os.dup(sys.stdout.fileno()))
    # The study parses standard output: what a library prints must go to the log instead.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    ended = _carry_out(order, messages)
    messages.send(ended)
    return ended.exit_code


def _carry_out(order: TrialOrder, messages: _MessagePipe) -> RunEnded:
    from phalanx import api
    from phalanx.launch.fork_server import use_fork_server
    from phalanx.spec.loader import job_from_mapping

    lost: list[str] = []
    try:
        use_fork_server(order.fork_server)
        api.train(
            job_from_mapping(order.job),
            runs=Path(order.runs),
            data_root=Path(order.data_root),
            cache_root=Path(order.cache_root),
            observers=[_reporter(messages, lost)],
            machines=_machines(order),
        )
    except PhalanxError as error:
        lost += filter(None, [error.facts.get("lost_machine"), *error.facts.get("faults", ())])
        return RunEnded(exit_code=error.exit_code, cause=str(error), lost_machines=lost)
    except Exception as error:  # the process boundary: the study goes on with the next trial
        traceback.print_exc()
        return RunEnded(exit_code=ExitCode.FAILED, cause=f"{type(error).__name__}: {error}")
    return RunEnded(exit_code=ExitCode.OK, lost_machines=lost)


def _machines(order: TrialOrder) -> PoolRequest | None:
    if not order.pool:
        return None
    from phalanx.cli.machines import read_pool, reduce_pool
    from phalanx.launch.base import PoolRequest

    pool = reduce_pool(read_pool(Path(order.pool)), order.machines)
    return PoolRequest(pool=pool, source=order.pool, build_env=order.build_env or pool.build_env)


class _MessagePipe:
    """Sends messages to the study; drops them once it is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: News) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._descriptor, msgspec.json.encode(message) + b"\n")


def _reporter(messages: _MessagePipe, lost: list[str]) -> Observer:
    """Return an observer that reports the run to the study, and collects machines that it loses."""
    from phalanx.control.progress import Observer, ProcessLoss, RunProgress

    class Reporter(Observer):
        next_s = 0.0

        def run_started(self, run_dir: Path, job: object) -> None:
            messages.send(RunBegun(run=run_dir.name))

        def progressed(self, progress: RunProgress) -> None:
            if progress.elapsed_s >= self.next_s:
                self.next_s = progress.elapsed_s + _REPORT_EVERY_S
                share = min(1.0, (progress.epoch + progress.epoch_share) / progress.epochs)
                messages.send(RunMoved(share=share, activity=progress.activity))

        def epoch_done(self, report: object) -> None:
            """Do nothing: a study counts runs, not epochs."""

        def switched(self, switch: object) -> None:
            """Do nothing: the run records it."""

        def placed(self, placed: object) -> None:
            """Do nothing: the run records it."""

        def run_finished(self, summary: object) -> None:
            """Do nothing: `main` reports the end."""

        def process_lost(self, loss: ProcessLoss) -> None:
            """Note the machine that is gone; the run itself goes on."""
            if loss.machine and loss.machine not in lost:
                lost.append(loss.machine)

        def noted(self, message: str) -> None:
            """Do nothing: the run records it."""

    return Reporter()


def _read_line(descriptor: int) -> bytes:
    """Read one line without a buffer: the lifeline thread reads the same descriptor next."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            sys.exit(ExitCode.FAILED)
        line += chunk
    return bytes(line)


def _end_with_study(descriptor: int) -> None:
    """End the run when the study's end of standard input closes, however the study ended."""

    def wait() -> None:
        while os.read(descriptor, 1024):
            pass
        # As if the user had ended the run: the controller ends its workers in order.
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_WIND_DOWN_S)
        os._exit(ExitCode.TERMINATED)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
