"""Record the manifest of a run: job, machine, versions and state of the source code.

Written before any worker starts, so that every run can be identified and repeated. Versions come
from package metadata: nothing heavy is imported for them.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil

from phalanx._version import __version__
from phalanx.records.masking import mask_secrets
from phalanx.records.position import newest_position
from phalanx.records.rundir import RunDir, encode_pretty, read_record
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.store.atomic import write_atomically

_PACKAGES = ("torch", "numpy", "pyzmq", "pydantic", "msgspec", "safetensors")


class Manifest(msgspec.Struct, kw_only=True):
    """Job, machine and versions that a run was started with."""

    job: dict[str, Any]
    phalanx: str
    python: str
    packages: dict[str, str]
    host: str
    system: str
    cpu: str
    cores: int
    memory_bytes: int
    source: dict[str, str]
    command: list[str]
    data_root: str
    cache_root: str
    pool: str | None = None
    """File of the pool whose machines the run is on; None: on this machine."""
    machines: list[str] = []
    """Names of the machines that may be used."""
    lease: str | None = None
    """What the pool's scheduler has lent, such as `slurm 17`; None: the machines are listed."""
    build_env: bool = False
    """Whether an environment is built there."""
    launch: str | None = None
    """The launcher, if it is not the usual one: `ssh` with a pool, else `local`."""


def describe(
    job: JobSpec,
    *,
    data_root: Path,
    cache_root: Path,
    pool: str | None = None,
    machines: Sequence[str] = (),
    lease: str | None = None,
    build_env: bool = False,
    launch: str | None = None,
) -> Manifest:
    """Make the manifest of a run that is about to start on this machine.

    Args:
        job: The job.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data.
        pool: File of the pool that the run is on; None: on this machine.
        machines: Those of the pool that may be used.
        lease: What the scheduler of the pool has lent.
        build_env: Whether an environment is built there.
        launch: The launcher, if it is not the usual one.
    """
    return Manifest(
        job=job.model_dump(mode="json", by_alias=True),
        phalanx=__version__,
        python=platform.python_version(),
        packages={name: package_version(name) or "absent" for name in _PACKAGES},
        host=platform.node(),
        system=platform.platform(),
        cpu=cpu_model(),
        cores=len(psutil.Process().cpu_affinity() or [0]),
        memory_bytes=psutil.virtual_memory().total,
        source=_source_state(Path.cwd()),
        command=mask_secrets(sys.argv),
        data_root=str(data_root),
        cache_root=str(cache_root),
        pool=pool,
        machines=list(machines),
        lease=lease,
        build_env=build_env,
        launch=launch,
    )


def write_manifest(run: RunDir, manifest: Manifest) -> None:
    """Write the manifest of a run, or of its continuation with a changed job."""
    write_atomically(run.path / "manifest.json", encode_pretty(manifest))


def keep_manifest(run: RunDir, attempt: int) -> None:
    """Copy the manifest of an attempt before the next attempt replaces it."""
    content = (run.path / "manifest.json").read_bytes()
    write_atomically(run.path / f"manifest-{attempt}.json", content)


def read_manifest(run: RunDir) -> Manifest:
    """Read the manifest of a run."""
    return read_record(run.path / "manifest.json", Manifest)


def cpu_model() -> str:
    """Return the processor's name as reported by the system."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def package_version(package: str) -> str | None:
    """Return the version of an installed package, without importing it; None: it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _source_state(directory: Path) -> dict[str, str]:
    """Return commit and cleanliness of the user's repository, if the job is started from one."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = git("status", "--porcelain")
    return {"commit": commit, "state": "clean" if changes == "" else "modified"}


def nothing_left(run: RunDir, overrides: Sequence[str] = ()) -> bool:
    """Return whether a run has finished all epochs of its job, with these changes to it."""
    if run.read_status().state != "finished":
        return False
    job = job_from_mapping(read_manifest(run).job, overrides)
    position = newest_position(run.checkpoints)
    if position is None:
        return False
    return position.epoch >= job.epochs or position.stopped_early
