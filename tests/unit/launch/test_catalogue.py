"""The table of launchers: what is in it, what goes with a pool, and launchers of others."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.launch.base import LaunchRequest, PoolRequest
from phalanx.launch.catalogue import LAUNCHERS, LauncherKind, default_launcher, make_launcher
from phalanx.launch.local import LocalLauncher
from phalanx.launch.ssh import SshLauncher
from phalanx.spec import registry
from phalanx.spec.job import JobSpec
from phalanx.spec.pool import PoolSpec
from support.fake_launcher import FakeLauncher
from support.there import here

FAKE = LauncherKind("fake", "support.fake_launcher:FakeLauncher", "nothing at all")
BROKEN = LauncherKind("broken", "support.fake_launcher:FakeGroup", "no launcher")


@pytest.fixture
def request_(tmp_path: Path) -> LaunchRequest:
    return LaunchRequest(JobSpec(), tmp_path, tmp_path)


@pytest.fixture
def with_pool(request_: LaunchRequest) -> LaunchRequest:
    pool = PoolSpec(pool="p", machines=(here("a").machine,))
    return replace(request_, pool=PoolRequest(pool, source="pool.yaml"))


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has found is not known to the next."""
    monkeypatch.setattr(LAUNCHERS, "_outside", {})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a launcher."""
    point = EntryPoint("fake", f"{__name__}:FAKE", LAUNCHERS.group)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))


def test_without_a_name_the_pool_decides(request_: LaunchRequest, with_pool: LaunchRequest) -> None:
    assert isinstance(make_launcher(None, request_), LocalLauncher)
    assert isinstance(make_launcher(None, with_pool), SshLauncher)
    assert [default_launcher(has_pool=has) for has in (False, True)] == ["local", "ssh"]
    assert LAUNCHERS.built_in == ("local", "ssh")


def test_what_does_not_go_together_is_refused(
    request_: LaunchRequest, with_pool: LaunchRequest
) -> None:
    with pytest.raises(SpecError, match="launcher 'ssh' needs machines; name a pool with --pool"):
        make_launcher("ssh", request_)
    with pytest.raises(SpecError, match="launcher 'local' runs on this machine"):
        make_launcher("local", with_pool)
    with pytest.raises(SpecError, match="unknown launcher 'shs'; did you mean 'ssh'"):
        make_launcher("shs", request_)


def test_a_launcher_of_another_package_is_found_by_its_path(request_: LaunchRequest) -> None:
    assert isinstance(make_launcher(f"{__name__}:FAKE", request_), FakeLauncher)
    with pytest.raises(SpecError, match=r"'support\.fake_launcher:FakeGroup' is no Launcher class"):
        make_launcher(f"{__name__}:BROKEN", request_)


@pytest.mark.usefixtures("installed")
def test_a_launcher_of_an_installed_package_is_found_by_its_name(
    request_: LaunchRequest, with_pool: LaunchRequest
) -> None:
    assert isinstance(make_launcher("fake", request_), FakeLauncher)
    assert isinstance(make_launcher("fake", with_pool), FakeLauncher)
    assert LAUNCHERS.names() == ("local", "ssh", "fake")
