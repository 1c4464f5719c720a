"""Export runs to MLflow, into a local database or to a server (`phalanx export mlflow`).

Each run becomes one MLflow run with its job as parameters, its versions as tags, and its metrics
with the times at which they were measured. A run is identified by its tag: exporting it twice
changes nothing, and a run that has continued since replaces its former export. Nothing leaves the
machine unless a server is named; MLflow's telemetry is turned off. Needs the extra `mlflow`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from phalanx.errors import StoreError
from phalanx.export.metrics import RunMetrics, Scalar, read_metrics, require
from phalanx.records.rundir import RunDir

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Item = TypeVar("Item")
DEFAULT_URI = "sqlite:///mlruns.db"
DEFAULT_EXPERIMENT = "phalanx"
_SQLITE = "sqlite:///"
_RUN_TAG, _DIGEST_TAG = "phalanx.run", "phalanx.digest"
# The most that MLflow takes in one request, and of one value.
_MAX_METRICS, _MAX_PARAMS, _MAX_TEXT = 1000, 100, 5000
_STATES = {"finished": "FINISHED", "running": "RUNNING", "interrupted": "KILLED"}
# MLflow takes these from the environment only: no telemetry, and half a minute instead of many for
# a server that does not answer.
_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
# They log every table that is created in a new database.
_TALKATIVE = ("alembic", "mlflow.store.db.utils")


class Exported(msgspec.Struct, kw_only=True, frozen=True):
    """The result of exporting one run."""

    run: str
    mlflow_run_id: str
    metrics: int
    what: str
    """new, replaced or unchanged."""


def export_mlflow(
    runs: Iterable[RunDir], *, uri: str = DEFAULT_URI, experiment: str = DEFAULT_EXPERIMENT
) -> list[Exported]:
    """Write runs into an MLflow tracking store.

    Args:
        runs: Runs to export.
        uri: A database such as `sqlite:///mlruns.db`, or the address of a server.
        experiment: Created if it does not exist.

    Raises:
        SpecError: The packages are not installed.
        StoreError: The store cannot be reached or refuses something.
    """
    with _quiet():
        for module in ("mlflow.tracking", "sqlalchemy", "alembic"):
            require(module, extra="mlflow", use="exporting to MLflow")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from sqlalchemy.exc import SQLAlchemyError

        _require_database(uri)
        try:
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(experiment)
            known = found.experiment_id if found else client.create_experiment(experiment)
            return [_export(client, known, read_metrics(run)) for run in runs]
        except (MlflowException, SQLAlchemyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise StoreError(f"MLflow at {uri} refused: {reason}", uri=uri) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable MLflow's telemetry and its log of table creation."""
    environment = os.environ  # noqa: TID251 (see _SETTINGS)
    former = {name: environment.get(name) for name in _SETTINGS}
    environment.update(_SETTINGS)
    loggers = {logger: logger.level for logger in map(logging.getLogger, _TALKATIVE)}
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)
        for name, value in former.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value


def _export(client: MlflowClient, experiment: str, metrics: RunMetrics) -> Exported:
    scalars = _scalars(metrics)
    content = msgspec.json.encode((metrics.state, metrics.params, scalars))
    digest = hashlib.sha256(content).hexdigest()
    query = f"tags.`{_RUN_TAG}` = '{metrics.name}'"
    former = client.search_runs([experiment], query)
    exported = partial(Exported, run=metrics.name, metrics=len(scalars))
    for run in former:
        if run.data.tags.get(_DIGEST_TAG) == digest:
            return exported(mlflow_run_id=run.info.run_id, what="unchanged")
    run_id = client.create_run(
        experiment,
        start_time=_milliseconds(metrics.begin_s),
        tags=_tags(metrics),
        run_name=metrics.name,
    ).info.run_id
    _fill(client, run_id, metrics, scalars)
    # Tagged last: only a run that was written completely may count as exported.
    client.set_tag(run_id, _DIGEST_TAG, digest)
    for run in former:
        client.delete_run(run.info.run_id)
    return exported(mlflow_run_id=run_id, what="replaced" if former else "new")


def _require_database(uri: str) -> None:
    """Refuse a file that is no database: MLflow itself tries again for minutes."""
    if not uri.startswith(_SQLITE):
        return
    try:
        with closing(sqlite3.connect(uri.removeprefix(_SQLITE))) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise StoreError(f"MLflow's database {uri} cannot be used: {error}", uri=uri) from error


def _fill(
    client: MlflowClient, run_id: str, metrics: RunMetrics, scalars: Sequence[Scalar]
) -> None:
    from mlflow.entities import Metric, Param

    for some in _batches(sorted(metrics.params.items()), _MAX_PARAMS):
        params = [Param(key, text[:_MAX_TEXT]) for key, text in some]
        client.log_batch(run_id, params=params, synchronous=True)
    for few in _batches(scalars, _MAX_METRICS):
        points = [Metric(s.name, s.value, _milliseconds(s.wall_s), s.step) for s in few]
        client.log_batch(run_id, metrics=points, synchronous=True)
    status = _STATES.get(metrics.state, "FAILED")
    if status != "RUNNING":
        client.set_terminated(run_id, status=status, end_time=_milliseconds(metrics.end_s))


def _scalars(metrics: RunMetrics) -> list[Scalar]:
    last = max((scalar.step for scalar in metrics.epochs), default=0)
    results = [
        Scalar(f"result/{name}", value, last, metrics.end_s)
        for name, value in metrics.results.items()
    ]
    return [*metrics.epochs, *results, *metrics.system]


def _tags(metrics: RunMetrics) -> dict[str, str]:
    manifest = metrics.manifest
    tags = {
        _RUN_TAG: metrics.name,
        "phalanx.version": manifest.phalanx,
        "phalanx.strategy": metrics.params["strategy.name"],
        "phalanx.seed": metrics.params["seed"],
        "phalanx.host": manifest.host,
        "phalanx.cpu": manifest.cpu,
        "python.version": manifest.python,
        "mlflow.source.name": " ".join(manifest.command)[:_MAX_TEXT],
        "mlflow.source.type": "JOB",
    }
    tags |= {f"{name}.version": version for name, version in manifest.packages.items()}
    if "commit" in manifest.source:
        tags["mlflow.source.git.commit"] = manifest.source["commit"]
    return tags


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
