"""Request more or fewer workers from the controller of a running run, if the run can have that.

Used by `phalanx scale` and by the dashboard, so that both refuse the same requests.
"""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir


def request_scale(run: RunDir, workers: int) -> None:
    """Request this number of workers in all.

    Raises:
        SpecError: The run is not running, cannot grow, or has as many already.
    """
    status = run.read_status()
    if status.state != "running":
        raise SpecError(f"run {run.name} is {status.state}; only a running one can grow")
    job = read_manifest(run).job
    elastic, strategy = job.get("elastic"), job["strategy"]
    if elastic is not None:
        if workers < elastic["min"]:
            raise SpecError(f"run {run.name} keeps {elastic['min']} workers or more (elastic.min)")
        run.request_workers(workers)
        return
    if strategy["name"] == "switch":
        raise SpecError(
            f"run {run.name} cannot grow: a run that switches keeps its workers, as a phase to "
            "come may need all of them in step"
        )
    if strategy["name"] != "parameter_server" or strategy["dispatch"] != "dynamic":
        raise SpecError(
            f"run {run.name} cannot grow: its batches are shared out in advance; only "
            "parameter_server with 'dispatch: dynamic' hands them out one by one, and only elastic "
            "runs share them out anew"
        )
    if workers <= job["workers"]:
        raise SpecError(
            f"run {run.name} was started with {job['workers']} workers; ask for more than that"
        )
    run.request_workers(workers)
