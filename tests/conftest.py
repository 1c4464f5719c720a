"""Hygiene, always on: no test leaves a process, thread, listening socket or setting behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from phalanx.launch.fork_server import OFF
from support.alone import pytest_runtest_protocol
from support.leaks import adopt_orphans, leaks_since, take_census
from support.tiers import (
    pytest_addoption,
    pytest_make_collect_report,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_sessionfinish,
)
from support.warm import starting

__all__ = [
    "pytest_addoption",
    "pytest_make_collect_report",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_sessionfinish",
]

adopt_orphans()
# A busy machine is slow, not wrong: no test may fail for the time that one example took.
# The same examples each time, so that a change is judged by what it changed; `make fuzz` looks for
# new ones, and what it finds becomes an `@example`.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def cold_starts() -> Iterator[None]:
    """Tests of parts start few processes or none; end-to-end tests share a fork server."""
    with starting(OFF):
        yield


@pytest.fixture(scope="session", autouse=True)
def all_threads() -> Iterator[None]:
    """What else runs on this machine must not decide how the runs of tests compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_THREADS", "all")
        yield


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = take_census()
    yield
    found = leaks_since(before)
    assert not found, "left behind: " + "; ".join(found)


@pytest.fixture(autouse=True)
def usual_arithmetic() -> Iterator[None]:
    """A replica makes its thread treat denormal numbers as zero; the next test must not see it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
