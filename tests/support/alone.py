"""A pytest plugin: a test marked `alone` runs while no other test of this checkout does.

What a test says about speeds (who is slower, by how much) holds only if nothing else uses the
cores. The other processes of xdist end the test they are in, and wait until this one is over.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import ExitStack

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a lock during each test: outermost, so that waiting for it counts for no timeout."""
    folder = item.config.rootpath / ".pytest_cache" / "alone"
    folder.mkdir(parents=True, exist_ok=True)
    is_alone = item.get_closest_marker("alone") is not None
    with ExitStack() as stack:
        lock = stack.enter_context((folder / "lock").open("a"))
        # Whoever wants to be alone keeps the others from beginning while it waits for their end.
        with (folder / "turn").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        # By name, not by closing: a forked child of a fixture may have the file open as well.
        stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        return (yield)
