"""Who may continue a run, through the façade and with a launcher that starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx import api
from phalanx.errors import LaunchError, StoreError
from phalanx.launch.base import Launcher, LaunchRequest
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.owner import RunOwner, read_owner
from phalanx.records.rundir import RunDir, Status
from phalanx.spec.loader import job_from_mapping
from support.fake_launcher import FakeLauncher, Script


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    job = job_from_mapping({"model": "mlp", "data": "digits"})
    made = RunDir.create(tmp_path, "job")
    write_manifest(made, describe(job, data_root=tmp_path, cache_root=tmp_path))
    made.write_status(Status(state="failed", pid=1, attempt=1))
    return made


@pytest.fixture
def on_check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something happen during the preflight, which then refuses the job."""

    def arrange(what: Callable[[], None]) -> None:
        class Preflight(FakeLauncher):
            def check(self) -> None:
                what()
                super().check()

        def make(name: str | None, request: LaunchRequest) -> Launcher:
            return Preflight(request, Script(obstacle=LaunchError("a machine is off")))

        monkeypatch.setattr(api, "make_launcher", make)

    return arrange


def test_a_run_is_owned_from_before_the_preflight(
    run: RunDir, on_check: Callable[[Callable[[], None]], None]
) -> None:
    refusals = []

    def come_second() -> None:
        with pytest.raises(StoreError, match="is still running") as caught:
            api.resume(run)
        refusals.append(caught.value)

    on_check(come_second)
    with pytest.raises(LaunchError, match="a machine is off"):
        api.resume(run)
    [refusal] = refusals
    assert refusal.exit_code == 6
    assert read_owner(run.path) is None, "given back after a preflight that failed"
    assert run.read_status().attempt == 1


def test_a_run_that_somebody_owns_is_not_touched(run: RunDir) -> None:
    before = (run.path / "status.json").read_bytes()
    with RunOwner(run.path), pytest.raises(StoreError, match="is still running"):
        api.resume(run, overrides=["epochs=9"])
    assert (run.path / "status.json").read_bytes() == before
    assert not list(run.path.glob("manifest-*.json"))
