"""Metrics and chapters that the case studies bring: errors of redshift, maps of land cover."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from phalanx.data.base import Scale
from phalanx.data.metrics import Predictions, compute_metrics
from phalanx.records.predictions import PartPredictions
from phalanx.report.document import Report
from phalanx.report.make import make_document
from phalanx.report.scope import Options
from phalanx_redshift.metrics import errors
from phalanx_redshift.spectra import RedshiftSource
from support.records import Outcome, write_run

JOB = {"model": "mlp", "data": {"name": "digits"}, "workers": 2, "strategy": "allreduce"}


def report(folder: Path, part: str, metrics: dict[str, float], seen: PartPredictions) -> Report:
    run = write_run(folder, "a", {**JOB, "name": "a"}, Outcome())
    summary = run.read_summary()
    assert summary is not None
    run.write_summary(msgspec.structs.replace(summary, test_metrics=metrics))
    run.write_predictions(seen)
    return make_document([folder], Options(parts=(part,)))


def test_errors_of_redshift() -> None:
    actual, predicted = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 3, 3, 0])
    one = Predictions(actual, predicted, 5, scale=Scale(low=1.0, width=0.1, name="redshift"))
    expected = np.array([0, 0, 0.1 / 2.25, 0, -0.4 / 2.45])
    assert errors(one) == pytest.approx(expected)
    assert compute_metrics(RedshiftSource.metrics, one) == pytest.approx(
        {
            "accuracy": 0.6,
            "within_one": 0.8,
            "nmad": 1.4826 * np.median(np.abs(expected)),
            "outliers": 0.4,
            "catastrophic": 0.2,
        }
    )


def test_errors_of_a_scale_become_a_histogram(tmp_path: Path) -> None:
    seen = PartPredictions(
        part="test",
        num_classes=80,
        scale=(1.0, 0.01),
        scale_name="redshift",
        actual=[0, 1, 2, 3],
        predicted=[0, 1, 2, 43],
    )
    metrics = {"nmad": 0.0012, "outliers": 0.25}
    document = report(tmp_path, "phalanx_redshift:ERRORS", metrics, seen)
    (panel,) = next(one for one in document.figures() if one.id == "errors-1").panels
    shares = {row["bin"]: row["share"] for row in panel.spec["data"]["values"]}
    assert (panel.title, shares["0"], shares["over 0.15"]) == ("Errors of redshift", 75.0, 25.0)
    table = next(one for one in document.tables() if one.id == "redshift-1")
    assert table.rows[0][1].text == "1.200"


def test_the_best_run_is_drawn_as_maps(tmp_path: Path) -> None:
    seen = PartPredictions(
        part="test",
        num_classes=3,
        class_names=["water", "soil", "grass"],
        grid=(2, 3),
        actual=[0, 0, 1, 1, 1, 1],
        predicted=[0, 0, 1, 9, 1, 0],
    )
    document = report(tmp_path, "phalanx_land_cover:MAPS", {"kappa": 0.6}, seen)
    figure = next(one for one in document.figures() if one.id == "maps-1")
    assert [panel.title for panel in figure.panels] == ["Map: true", "Map: predicted"]
    assert [swatch.label for swatch in figure.legend] == ["water", "soil", "grass"]
    said = [(row["x"], row["y"], row["class"]) for row in figure.panels[1].spec["data"]["values"]]
    assert said[3:] == [(0, 1, "none"), (1, 1, "soil"), (2, 1, "water")]
