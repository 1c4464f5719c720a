"""Learning curves of recorded runs: what is drawn, how it is saved, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import phalanx
from phalanx.errors import SpecError, StoreError
from phalanx.notebook.curves import draw_curves, read_curves
from phalanx.records.events import Epoch, Evaluation
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir, Status
from support.records import Outcome, write_run

JOB = {"data": "digits", "epochs": 4}


def record_epochs(run: RunDir, losses: list[float]) -> None:
    """Epochs as a script's run has them: no accuracy, a reported metric."""
    with EventLog(run.events_path("worker-0")) as log:
        for number, loss in enumerate(losses):
            log.record(
                Evaluation(
                    part="validation",
                    epoch=number,
                    num_samples=8,
                    loss=None,
                    accuracy=None,
                    duration_s=0.1,
                    metrics={"perplexity": 10 * loss},
                )
            )
            log.record(
                Epoch(
                    epoch=number,
                    samples=10 * (number + 1),
                    updates=number + 1,
                    train_loss=loss,
                    train_accuracy=None,
                    regularisation=0.0,
                    val_loss=None,
                    val_accuracy=None,
                    lr=0.1,
                    train_s=2.0 * (number + 1),
                    evaluate_s=0.0,
                )
            )


def test_a_run_is_plotted_shown_and_saved(tmp_path: Path) -> None:
    write_run(tmp_path, "mine", JOB)
    run = phalanx.open_run("mine", runs=tmp_path)
    plot = run.plot()
    assert [panel.title for panel in plot.figure.panels] == ["loss by epoch", "accuracy by epoch"]
    shown = plot._repr_html_()
    assert shown.startswith("<figure")
    assert '<svg style="max-width: 100%' in shown, "it fits on a narrow page"
    assert "validation" in shown
    assert "<figcaption>mine</figcaption>" in shown
    plot.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    run.plot("loss", by="time").save(tmp_path / "x.svg")
    assert "training time, s" in (tmp_path / "x.svg").read_text()
    run.plot("accuracy", by="samples").save(str(tmp_path / "x.html"))
    assert "samples seen" in (tmp_path / "x.html").read_text()


def test_a_scripts_metrics_are_curves_and_the_last_repeat_of_an_epoch_counts(
    tmp_path: Path,
) -> None:
    run = RunDir.create(tmp_path, "script")
    record_epochs(run, [1.0, 0.9])
    record_epochs(run, [1.0, 0.5, 0.25])
    curves = read_curves(run)
    assert list(curves) == ["loss", "perplexity"]
    points = [(row["epoch"], row["seconds"], row["value"]) for row in curves["perplexity"]]
    assert points == [(1, 2.0, 10.0), (2, 4.0, 5.0), (3, 6.0, 2.5)]
    assert {row["series"] for row in curves["loss"]} == {"training"}


def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path, "failed", JOB, Outcome(state="failed"))
    plot = draw_curves(run)
    assert plot.figure.caption == "failed (failed)"
    with pytest.raises(SpecError, match="no curve 'f1' \\(valid: loss, accuracy\\)"):
        draw_curves(run, ["f1"])
    with pytest.raises(SpecError, match="by epoch, time, samples, not by 'step'"):
        draw_curves(run, by="step")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"end it with \.png, \.svg or \.html"):
        plot.save(tmp_path / "x.pdf")
    with pytest.raises(StoreError, match="cannot write"):
        plot.save(tmp_path / "nowhere" / "x.svg")
    early = RunDir.create(tmp_path, "early")
    early.write_status(Status.of_this_process("running", attempt=1))
    with pytest.raises(StoreError, match="has no epoch to draw: none has ended yet"):
        draw_curves(early)
    early.write_status(Status.of_this_process("interrupted", attempt=1))
    with pytest.raises(StoreError, match="has no epoch to draw: it is interrupted without one"):
        draw_curves(early)
