"""Have a job checked before its first process: network, data, and their sizes on this machine.

The framework and the user's code are imported in a process of their own (`worker.job_check`),
forked where that is possible.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
import psutil

from phalanx.errors import SpecError
from phalanx.launch.fork_server import WarmStart
from phalanx.launch.memory import available_bytes, check_memory
from phalanx.records.job_check import JobAnswer, JobQuestion, needs_check
from phalanx.spec.job import JobSpec
from phalanx.spec.render import to_mapping
from phalanx.wire.fork_client import ChildProcess

_MODULE = "phalanx.worker.job_check"
_LOOK_S = 5.0
CROWD = 16
"""Workers per core above which a machine does little but switch between them."""


def check_sizes(job: JobSpec, num_cores: int) -> None:
    """Refuse numbers of workers that neither the cores nor the batch are meant for.

    Raises:
        SpecError: There are far more workers than cores, or more than samples in a step.
    """
    if job.workers > CROWD * num_cores:
        raise SpecError(
            f"{job.workers} workers would bring a machine with {num_cores} usable cores to a halt; "
            f"use up to {num_cores} for speed, up to {CROWD * num_cores} for trials, or start all "
            "the same with --force"
        )
    # A script says later what its batch is.
    is_known = job.batch.shares is None and job.program is None
    is_cut = is_known and not job.strategy.uses_servers
    if is_cut and job.workers > job.global_batch:
        raise SpecError(
            f"a global batch of {job.global_batch} leaves {job.workers - job.global_batch} of "
            f"{job.workers} workers without a sample in every step; use a larger batch or fewer "
            "workers, or start all the same with --force"
        )


def crowding_note(job: JobSpec, num_cores: int) -> str | None:
    """Say what more workers than cores cost; None where each has a core, or all are refused."""
    if job.workers <= num_cores or job.workers > CROWD * num_cores:
        return None
    return (
        f"{job.workers} workers share {num_cores} usable cores, {job.workers / num_cores:.3g} on "
        f"each: fine for trying a strategy, but slower than {num_cores}, and its speeds say little "
        "about machines with a core per worker"
    )


def check_fit(
    job: JobSpec, *, data_root: Path, cache_root: Path, state_bytes: int = 0
) -> list[str]:
    """Check a job with all its sizes on this machine, and return what is probably not meant.

    Args:
        job: The job.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data.
        state_bytes: Parameters and moments of one worker, where a checkpoint tells.

    Raises:
        SpecError: Sizes, network or data cannot be used.
        LaunchError: The memory of this machine does not suffice.
    """
    check_sizes(job, usable_cores())
    check_memory(job, available_bytes(), state_bytes=state_bytes)
    found = check_job(job, data_root=data_root, cache_root=cache_root)
    if found.num_parameters:
        # Parameters and gradients in float32; moments depend on the optimiser.
        state_bytes = max(state_bytes, 4 * found.num_parameters)
        check_memory(job, available_bytes(), state_bytes=state_bytes)
    return found.notes


def check_job(job: JobSpec, *, data_root: Path, cache_root: Path) -> JobAnswer:
    """Build the network of a job and have it answer a few of its samples.

    A job of built-in parts is not checked, and an examination that itself fails refuses nothing:
    the workers report what is wrong.

    Raises:
        SpecError: Network, data or their combination cannot be used; nothing was started.
    """
    if not needs_check(job):
        return JobAnswer()
    question = JobQuestion(
        job=to_mapping(job), data_root=str(data_root), cache_root=str(cache_root)
    )
    answer = _ask(msgspec.json.encode(question) + b"\n", job.deadlines.start_s)
    if answer.fault is not None:
        raise SpecError(answer.fault, traceback=answer.traceback)
    if 0 < answer.num_samples < job.workers:
        raise SpecError(
            f"the data has {answer.num_samples} training samples for {job.workers} workers; use "
            "fewer workers or more data"
        )
    return answer


def _ask(question: bytes, limit_s: float) -> JobAnswer:
    with tempfile.TemporaryFile() as output:
        child = WarmStart().fork(_MODULE, output.fileno()) or _start_cold(output)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(question)
                child.stdin.flush()
            _wait(child, limit_s)
        finally:
            child.kill()
            child.wait()
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
        output.seek(0)
        lines = output.read().strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=JobAnswer)
    except msgspec.DecodeError:
        # It crashed, or was stopped: the workers meet the same, and their logs say what it was.
        return JobAnswer()


def _start_cold(output: BinaryIO) -> ChildProcess:
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C is this process's to answer.
        start_new_session=True,
    )


def _wait(child: ChildProcess, limit_s: float) -> None:
    """Wait until the process ends, or has not computed for so long."""
    used, moved = -1.0, time.monotonic()
    while time.monotonic() - moved < limit_s:
        try:
            child.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(child.pid).cpu_times()
                if times.user + times.system > used:
                    used, moved = times.user + times.system, time.monotonic()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
