from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import StoreError
from phalanx.study.lock import StudyLock

# Takes over the lock's descriptor, says so, and keeps it until its standard input is closed.
HEIR = "import sys; print('here', flush=True); sys.stdin.read()"


def test_two_studies_do_not_share_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        StudyLock(path),
        pytest.raises(StoreError, match=f"is being run by process {os.getpid()}"),
        StudyLock(path),
    ):
        pass
    with StudyLock(path):
        pass


def test_the_lock_is_held_until_the_last_trial_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with StudyLock(path) as lock:
        heir = subprocess.Popen(
            [sys.executable, "-c", HEIR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock.descriptor,),
        )
    with heir:
        assert heir.stdout is not None
        assert heir.stdout.readline() == b"here\n"
        # The study that wrote its number here is gone; what it started is not.
        path.write_text("")
        with pytest.raises(StoreError, match="processes of an earlier session"):
            StudyLock(path, patience_s=0.0).__enter__()
        heir.communicate()
    with StudyLock(path, patience_s=0.0):
        pass
