from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phalanx.errors import SpecError, StoreError
from phalanx.export.mlflow import export_mlflow
from phalanx.records.events import Epoch
from phalanx.records.rundir import RunDir
from support.scripted import make_summary
from support.written import write_run

# MLflow 3 uses a loader that SQLAlchemy 2.1 deprecates; neither is ours.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def epoch(number: int) -> Epoch:
    return Epoch(
        epoch=number, samples=100 * (number + 1), updates=1, train_loss=2.0 - number,
        train_accuracy=0.5, regularisation=0.0, val_loss=1.5, val_accuracy=0.25, lr=0.1,
        train_s=4.0 * (number + 1), evaluate_s=0.0, wall_s=1e9 + number,
    )  # fmt: skip


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all tests, each with an experiment of its own: making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlruns.db"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = write_run(tmp_path / "runs", {"worker-0": [epoch(0), epoch(1)]}, job={"seed": 7})
    run.write_summary(make_summary(run_dir=str(run.path), strategy="allreduce", workers=2))
    return run


def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def test_a_run_can_be_read_back_with_its_settings_figures_and_times(run: RunDir, uri: str) -> None:
    (exported,) = export_mlflow([run], uri=uri, experiment="things")
    reader = client(uri)
    experiment = reader.get_experiment_by_name("things")
    (found,) = reader.search_runs([experiment.experiment_id])
    assert (exported.what, exported.mlflow_run_id) == ("new", found.info.run_id)
    assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
    assert found.data.params["strategy.name"] == "allreduce"
    assert found.data.params["seed"] == "7"
    assert found.data.tags["phalanx.seed"] == "7"
    assert "torch.version" in found.data.tags
    history = reader.get_metric_history(found.info.run_id, "train/loss")
    assert [(one.step, one.value, one.timestamp) for one in history] == [
        (1, 2.0, 1_000_000_000_000),
        (2, 1.0, 1_000_000_001_000),
    ]
    assert found.data.metrics["result/test_accuracy"] == 0.75


def test_exporting_again_changes_nothing_and_a_run_that_went_on_replaces(
    run: RunDir, uri: str
) -> None:
    first, second = (export_mlflow([run], uri=uri)[0] for _ in range(2))
    assert (first.what, second.what) == ("new", "unchanged")
    assert first.mlflow_run_id == second.mlflow_run_id
    with run.events_path("worker-0").open("ab") as log:
        log.write(msgspec.json.encode(epoch(2)) + b"\n")
    (third,) = export_mlflow([run], uri=uri)
    assert third.what == "replaced"
    reader = client(uri)
    (found,) = reader.search_runs([reader.get_experiment_by_name("phalanx").experiment_id])
    history = reader.get_metric_history(found.info.run_id, "train/loss")
    assert [one.step for one in history] == [1, 2, 3]


def test_an_address_that_is_none_is_refused_in_a_sentence(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="MLflow at nonsense://x refused"):
        export_mlflow([run], uri="nonsense://x")
    with pytest.raises(StoreError, match=r"x\.db cannot be used: unable to open database file"):
        export_mlflow([run], uri=f"sqlite:///{tmp_path}/absent/x.db")
    (tmp_path / "text.db").write_text("no database, but long enough to be taken for one" * 4)
    with pytest.raises(StoreError, match="file is not a database"):
        export_mlflow([run], uri=f"sqlite:///{tmp_path}/text.db")


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alembic", None)
    with pytest.raises(SpecError, match=r"pip install 'phalanx\[mlflow\]'"):
        export_mlflow([])
