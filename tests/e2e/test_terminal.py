"""A run whose terminal is closed ends in order, and goes on from where it was."""

from __future__ import annotations

import os
import pty
import signal

from phalanx.records.rundir import RunDir
from support.runs import ENDLESS, LIMIT_S, Place, is_running, started_pid
from support.waiting import wait_until


def test_closing_the_terminal_ends_a_run_in_order(place: Place) -> None:
    job = place.write_job(ENDLESS | {"checkpoint": {"every_epochs": 1}})
    command = place.command("train", job)
    pid, master = pty.fork()
    if pid == 0:
        # Also if these tests run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(place.folder)
        os.execvp(command[0], command)

    def has_checkpoint() -> bool:
        # Read as a terminal does, or the run would wait for it.
        os.read(master, 1 << 16)
        return any(place.runs.glob("*/checkpoints/samples-*.safetensors"))

    try:
        wait_until(has_checkpoint, "a checkpoint", limit_s=LIMIT_S)
    finally:
        os.close(master)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 143
    [path] = place.runs.iterdir()
    run = RunDir(path)
    ended = run.read_status()
    assert (ended.state, ended.cause) == (
        "interrupted",
        f"its terminal was closed; continue with `phalanx train --resume {path}`",
    )
    for rank in range(2):
        worker = started_pid(run, rank)
        assert worker is not None
        assert not is_running(worker)
