"""Each rope alone, on a real process whose main thread is stuck in a C call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import wait_until

LIMIT_S = 60.0
STUCK = """
import ctypes, os, sys
from phalanx.worker.lifeline import die_with_parent, watch_signals, watch_stdin

def on_exit():
    os.write(1, b"last words\\n")

{ropes}
os.write(1, b"ready\\n")
while True:
    ctypes.CDLL(None).pause()
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
os.write(1, b"%d\\n" % child.pid)
child.wait()
"""


@contextmanager
def stuck(ropes: str) -> Iterator[subprocess.Popen[bytes]]:
    script = STUCK.format(ropes=ropes)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.read()


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_sigterm_is_heard_while_the_main_thread_is_stuck() -> None:
    with stuck("watch_signals(on_exit)") as child:
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert said(child) == b"last words\n"


def test_the_end_of_standard_input_ends_the_process() -> None:
    with stuck("watch_stdin(0, on_exit)") as child:
        assert child.stdin is not None
        child.stdin.write(b"more input is read and forgotten")
        child.stdin.close()
        assert child.wait(LIMIT_S) == 1
        assert said(child) == b"last words\n"


@pytest.mark.parametrize(
    ("ropes", "code"),
    [("watch_signals(lambda: 1 / 0)", 143), ("watch_stdin(0, lambda: 1 / 0)", 1)],
)
def test_on_exit_that_fail_hold_nothing_up(ropes: str, code: int) -> None:
    with stuck(ropes) as child:
        assert child.stdin is not None
        child.stdin.close()
        if code == 143:
            child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == code


def test_ctrl_c_in_the_terminal_is_the_controllers_business() -> None:
    with stuck("watch_signals(on_exit)") as child:
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == 143


def test_a_process_dies_with_its_killed_parent() -> None:
    script = STUCK.format(ropes="die_with_parent(os.getppid())")
    with subprocess.Popen([sys.executable, "-c", PARENT, script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline(), parent.stdout.readline()}
        assert b"ready\n" in lines
        [pid] = [int(line) for line in lines if line != b"ready\n"]
        assert is_running(pid)
        parent.kill()
        parent.wait(LIMIT_S)
        wait_until(lambda: not is_running(pid), "the child to die with its parent")


def test_a_parent_that_went_first_is_noticed() -> None:
    script = "from phalanx.worker.lifeline import die_with_parent; die_with_parent(1)"
    with subprocess.Popen([sys.executable, "-c", script]) as child:
        assert child.wait(LIMIT_S) == 1
    script = script.replace("(1)", f"({os.getpid()})")
    with subprocess.Popen([sys.executable, "-c", script]) as child:
        assert child.wait(LIMIT_S) == 0
