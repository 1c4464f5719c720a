"""Start a worker process from its WorkerSpec; the only module that reads the environment.

Sets the lifelines, binds cores and threads, joins the controller, runs the role and reports how it
ended. The framework is imported after the cores are bound, so that its thread pools see the right
ones. Shared by `phalanx.worker` and `phalanx.backends`.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from phalanx.errors import EngineError, ExitCode, PhalanxError, StoreError
from phalanx.observe.sampler import Sampler
from phalanx.records.events import Clock, Failure, Finished
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.clock import ClockReading
from phalanx.wire.control_client import ControlClient
from phalanx.wire.descriptors import raise_descriptors
from phalanx.wire.forking import THREAD_VARIABLES, bounded_spin
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import Done, Failed, Hello
from phalanx.wire.moments import plant
from phalanx.worker.lifeline import die_with_parent, watch_signals, watch_stdin
from phalanx.worker.metrics import WorkerMetrics, write_steps
from phalanx.worker.private_network import PrivateNetworkEntry

if TYPE_CHECKING:
    from phalanx.worker.context import WorkerContext

_log = logging.getLogger(__name__)

# Characters: more of an error than anybody reads.
_MAX_REPORT = 100_000
_OPENBLAS = "openblas"


def main(roles: str) -> None:
    """Run the process described on standard input, then exit with its code.

    Args:
        roles: Module whose `run_role(context)` does the work; imported once cores are bound.
    """
    started = time.monotonic()
    spec = _read_spec()
    # Servers take connections of all workers, and of strangers until these are refused.
    raise_descriptors()
    # Before the signal of a dead parent, which the system forgets when rights change.
    network = PrivateNetworkEntry(spec.network_pid)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {spec.process} %(levelname)s %(message)s"
    )
    if spec.parent_pid is not None:
        die_with_parent(spec.parent_pid)
    log = EventLog(RunDir(Path(spec.run_dir)).events_path(spec.process))
    watch_signals(log.flush)
    watch_stdin(sys.stdin.fileno(), log.flush)
    if spec.cpus:
        os.sched_setaffinity(0, spec.cpus)
    os.environ.update(spec.environment)
    _limit_threads(spec.threads)
    if target := os.environ.get("PHALANX_MOMENTS"):
        plant(target, process=spec.process, control_address=spec.control_address)
    sys.exit(_take_part(spec, log, started, roles, network))


def _read_spec() -> WorkerSpec:
    try:
        return WorkerSpec.model_validate_json(sys.stdin.buffer.readline())
    except ValidationError as error:
        # Without its values: they hold this process's keys, and the log is copied and kept.
        faults = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        sys.exit(f"the spec of this process is none: {'; '.join(faults)}")


def _take_part(
    spec: WorkerSpec, log: EventLog, started: float, roles: str, network: PrivateNetworkEntry
) -> int:
    metrics = WorkerMetrics()
    control = ControlClient(
        spec.control_address,
        server_key=spec.controller_key,
        keys=KeyPair(public=spec.public_key, secret=spec.secret_key),
        progress=metrics.progress,
        on_stop=lambda reason: _log.info("asked to stop: %s", reason),
        on_clock=lambda reading: _note_clock(reading, spec, log),
    )
    sampler = Sampler(
        spec.job.observe,
        log.record,
        attempt=spec.attempt,
        watch_host=spec.watch_host,
        host=spec.host,
    )
    with control:
        control.send(Hello(pid=os.getpid(), host=socket.gethostname()))
        try:
            with log:
                with sampler:
                    if spec.baseline_s > 0:
                        metrics.activity = "watching the idle machine"
                        sampler.watch_idle(spec.baseline_s)
                        started += spec.baseline_s
                    # After the control channel has its threads, before the framework has any.
                    network.enter()
                    # numpy, the framework and all that needs them, only now.
                    from phalanx.worker.context import WorkerContext

                    run_role: Callable[[WorkerContext], Done] = import_module(roles).run_role
                    done = run_role(WorkerContext(spec, control, log, metrics, started, sampler))
                write_steps(log, metrics)
                log.record(Finished(rank=spec.rank, state="finished"))
        except Exception as error:  # the process boundary: everything is reported, nothing raised
            return _report(error, spec, control, log)
        control.send(done)
    if control.num_undelivered:
        _log.error("the controller has not taken the last messages of this process")
        return ExitCode.DEADLINE
    return ExitCode.OK


def _note_clock(reading: ClockReading, spec: WorkerSpec, log: EventLog) -> None:
    # The training thread reports a full disk; the heartbeat must go on.
    with contextlib.suppress(StoreError):
        log.record(Clock(offset_s=reading.offset_s, error_s=reading.error_s, attempt=spec.attempt))


def _report(error: Exception, spec: WorkerSpec, control: ControlClient, log: EventLog) -> int:
    """Report why this process ends, to the controller, the event log and the printed log."""
    code = error.exit_code if isinstance(error, PhalanxError) else ExitCode.FAILED
    message = str(error) if isinstance(error, PhalanxError) else f"{type(error).__name__}: {error}"
    message = message[:_MAX_REPORT]
    detail = _trace(error)[-_MAX_REPORT:]
    _log.error("%s", f"{message}\n{detail}" if detail else message)
    control.send(
        Failed(kind=type(error).__name__, message=message, traceback=detail, exit_code=int(code))
    )
    log.append_last(Failure(rank=spec.rank, cause=message, detail=detail))
    return int(code)


def _trace(error: Exception) -> str:
    """Return the traceback of an unexpected error; empty for one that explains itself."""
    if isinstance(error, EngineError) and error.__cause__ is not None:
        # The user's model failed; how its error was caught and passed on is of no interest.
        return "".join(traceback.format_exception(error.__cause__))
    return "" if isinstance(error, PhalanxError) else traceback.format_exc()


def _limit_threads(threads: int) -> None:
    # Libraries read the environment when they are loaded, so a cold process needs no more.
    # The spin of idle threads stays that of the fork server in a warm one, which sets the same.
    os.environ.update(bounded_spin(os.environ))
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
        _limit_openblas(threads)


def _limit_openblas(threads: int) -> None:
    """Set the thread count of NumPy's OpenBLAS, which has no Python call for it."""
    for path in {word for word in Path("/proc/self/maps").read_text().split() if _OPENBLAS in word}:
        library = ctypes.CDLL(path)
        for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("", "")):
            with contextlib.suppress(AttributeError):
                if getattr(library, f"{prefix}{_OPENBLAS}_get_num_threads{suffix}")() != threads:
                    getattr(library, f"{prefix}{_OPENBLAS}_set_num_threads{suffix}")(threads)
                break
