"""The façade: what the command line, notebooks and programs call.

Everything here takes specs and paths and returns records; nothing imports a framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.control.controller import Controller
from phalanx.control.progress import Observer
from phalanx.control.roster import RunRequest
from phalanx.data.sources import open_source
from phalanx.errors import StoreError
from phalanx.launch.local import LocalLauncher
from phalanx.records.manifest import describe, keep_manifest, read_manifest, write_manifest
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping

DEFAULT_RUNS = Path("runs")
DEFAULT_DATA = Path.home() / ".cache" / "phalanx" / "data"
DEFAULT_CACHE = Path.home() / ".cache" / "phalanx" / "cache"


def train(
    job: JobSpec | dict[str, object],
    *,
    runs: Path = DEFAULT_RUNS,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    observers: Sequence[Observer] = (),
) -> Summary:
    """Train a job on this machine in a new run directory.

    Args:
        job: A job, or the mapping that a job file would hold.
        runs: Where the run directory is made.
        data_root: Where data sets lie.
        cache_root: Where decoded data is kept.
        observers: Who follows the run while it goes.

    Returns:
        The summary, which is also in the run directory.
    """
    if isinstance(job, dict):
        job = job_from_mapping(job)
    # Names missing files before anything is started.
    open_source(job.data, data_root=data_root)
    run = RunDir.create(runs, job.name)
    write_manifest(run, describe(job, data_root=data_root, cache_root=cache_root))
    request = RunRequest(job=job, run=run, data_root=data_root, cache_root=cache_root)
    return _carry_out(request, observers)


def resume(
    run: RunDir, *, overrides: Sequence[str] = (), observers: Sequence[Observer] = ()
) -> Summary:
    """Continue a run from its newest checkpoint, in the same run directory.

    Args:
        run: The run to continue; it must not be running now.
        overrides: `path=value` changes to the job, such as `workers=3` or `epochs=10`.
        observers: Who follows the run while it goes.
    """
    status = run.read_status()
    if status.state == "running":
        raise StoreError(f"run {run.name} is still running (pid {status.pid}); end it first")
    manifest = read_manifest(run)
    job = job_from_mapping(manifest.job, overrides)
    if overrides:
        # The manifest says what the results come from, so it follows; the former one stays beside.
        keep_manifest(run, status.attempt)
        data_root, cache_root = Path(manifest.data_root), Path(manifest.cache_root)
        write_manifest(run, describe(job, data_root=data_root, cache_root=cache_root))
    request = RunRequest(
        job=job,
        run=run,
        data_root=Path(manifest.data_root),
        cache_root=Path(manifest.cache_root),
        attempt=status.attempt + 1,
        resume=run.checkpoints,
    )
    return _carry_out(request, observers)


def _carry_out(request: RunRequest, observers: Sequence[Observer]) -> Summary:
    launcher = LocalLauncher(request.run.path / "logs")
    return Controller(request, launcher=launcher, observers=observers).run()
