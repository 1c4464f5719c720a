"""Chapters on data distribution and on metrics and predictions, from made-up run directories."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phalanx.records.distribution import Distribution, WorkerShare
from phalanx.records.predictions import PartPredictions
from phalanx.records.rundir import RunDir
from phalanx.report.document import NOTHING, Report
from phalanx.report.make import make_document
from support.records import Outcome, write_run

JOB = {"model": "mlp", "data": {"name": "digits"}, "workers": 2}


def judged(run: RunDir, metrics: dict[str, float], verdicts: PartPredictions) -> None:
    summary = run.read_summary()
    assert summary is not None
    run.write_summary(msgspec.structs.replace(summary, test_metrics=metrics))
    run.write_predictions(verdicts)


def table(document: Report, id: str) -> dict[str, list[str]]:
    found = next(one for one in document.tables() if one.id == id)
    return {row[0].text: [value.text for value in row[1:]] for row in found.rows}


def land(predicted: list[int]) -> PartPredictions:
    return PartPredictions(
        part="test",
        num_classes=3,
        class_names=["water", "soil", "grass"],
        grid=(2, 3),
        actual=[0, 0, 1, 1, 1, 1],
        predicted=predicted,
    )


@pytest.fixture
def document(tmp_path: Path) -> Report:
    for name, strategy, predicted, kappa in (
        ("a", "allreduce", [0, 0, 1, 1, 1, 0], 0.6),
        ("b", "local_sgd", [0, 1, 1, 1, 9, 9], 0.2),
    ):
        job = {**JOB, "name": name, "strategy": strategy}
        judged(write_run(tmp_path, name, job, Outcome()), {"kappa": kappa}, land(predicted))
    return make_document([tmp_path])


def test_measures_and_classes_stand_in_tables(document: Report) -> None:
    measures = table(document, "metrics-1")
    assert {label: values[0] for label, values in measures.items()} == {
        "allreduce · 128": "0.600",
        "local_sgd · 128": "0.200",
    }
    classes = table(document, "metrics-classes-1")
    assert classes == {
        "water": ["2", "100.0", "50.0"],
        "soil": ["4", "75.0", "50.0"],
        "grass": ["0", NOTHING, NOTHING],
    }


def test_the_best_run_is_drawn_as_confusion(document: Report) -> None:
    figure = next(one for one in document.figures() if one.id == "predictions-1")
    (panel,) = figure.panels
    shares = {(row["y"], row["x"]): row["value"] for row in panel.spec["data"]["values"]}
    assert shares["soil", "soil"] == 0.75


def test_how_data_lay_is_told_and_nothing_where_nobody_owned(tmp_path: Path) -> None:
    job = {**JOB, "name": "a", "strategy": "allreduce"}
    run = write_run(tmp_path, "a", job, Outcome())
    plain = make_document([tmp_path])
    assert not {"data-distribution", "metrics"} & {section.id for section in plain.sections}
    run.write_distribution(
        Distribution(
            scheme="dirichlet",
            settings={"alpha": 0.1},
            seed=1,
            data="digits",
            fingerprint="",
            num_samples=10,
            num_steps=3,
            samples_per_epoch=10,
            skew=0.5,
            size_ratio=4.0,
            workers=[
                WorkerShare(
                    worker=rank, num_samples=size, samples_per_step=3, samples_per_epoch=size
                )
                for rank, size in enumerate((8, 2))
            ],
        )
    )
    rows = next(one for one in make_document([tmp_path]).tables() if one.id == "data-spread").rows
    assert [value.text for value in rows[0][2:]] == [
        "dirichlet (alpha 0.1)",
        *("2", "0.500", "4.00", "10", "10", "3"),
    ]
