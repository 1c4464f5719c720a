from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from phalanx.launch.fork_server import OFF
from support.leaks import watch_children_of
from support.runs import Place
from support.warm import running_fork_server, starting

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Quiet: a page under test is the only one that may ask for anything.
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def shared_fork_server() -> Iterator[str]:
    """The fork server of this session; its children count as those of the session."""
    with running_fork_server() as server:
        assert server.pid is not None
        with watch_children_of(server.pid):
            yield server.address


@pytest.fixture(scope="session", autouse=True)
def warm_starts(shared_fork_server: str, cold_starts: None) -> Iterator[None]:
    """Commands and runs of these tests fork their workers, unless a test says otherwise."""
    with starting(shared_fork_server):
        yield


@pytest.fixture(params=[pytest.param("cold", marks=pytest.mark.full), "warm"])
def either_start(request: pytest.FixtureRequest, shared_fork_server: str) -> Iterator[str]:
    """Run a test twice: what it proves may depend on how its processes start."""
    with starting(OFF if request.param == "cold" else shared_fork_server):
        yield request.param


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decoded data, shared by all runs of the session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path, cache: Path) -> Place:
    return Place(tmp_path, cache)


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A real browser; the test is skipped where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=BROWSER_ARGUMENTS)
        yield browser
        browser.close()
