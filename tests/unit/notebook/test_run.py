"""What `import phalanx` offers: files and text as jobs, the variables of the commands, Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx import api
from phalanx.control.progress import RunProgress
from phalanx.errors import Interrupted, SpecError
from phalanx.notebook.live_view import NotebookView
from phalanx.notebook.run_result import as_result
from phalanx.records.events import Epoch
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from support.scripted import make_summary

SCRIPT = """
import phalanx

def small(input_shape, num_classes):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

job = {"model": small, "data": {"name": "digits", "limit": 200}, "epochs": 2}
result = phalanx.train(job)
assert result.run_dir.startswith("elsewhere/"), result.run_dir
assert "<svg" in result._repr_html_() and "test accuracy" in repr(result)
again = phalanx.resume("last")
assert again.parameters_sha256 == result.parameters_sha256
assert phalanx.open_run().load_model()[1].out_features == 10
print("done")
"""


def test_a_script_trains_its_own_function_resumes_and_opens_the_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_RUNS": "elsewhere", "PHALANX_CACHE": "cache"},  # noqa: TID251
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr


def test_files_and_text_are_taken_where_jobs_and_paths_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, object] = {}

    def train(job: JobSpec, **options: object) -> object:
        taken.update(options, job=job)
        return make_summary(run_dir=str(tmp_path))

    monkeypatch.setattr(api, "train", train)
    monkeypatch.setenv("PHALANX_DATA", "/data/of/all")
    (tmp_path / "job.yaml").write_text("{data: digits, epochs: 4}")
    phalanx.train(str(tmp_path / "job.yaml"), runs="results", overrides=["workers=3"])
    assert taken["job"] == JobSpec(epochs=4, workers=3)
    assert taken["runs"] == Path("results")
    assert taken["data_root"] == Path("/data/of/all")
    with pytest.raises(SpecError, match="a job is a file, a mapping or a JobSpec, not int"):
        phalanx.train(3)  # type: ignore[arg-type]


def test_ctrl_c_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(job: JobSpec, **options: object) -> object:
        raise Interrupted("interrupted by Ctrl-C", run_dir="runs/mine")

    monkeypatch.setattr(api, "train", train)
    with pytest.raises(KeyboardInterrupt, match=r"continue with phalanx.resume\('runs/mine'\)"):
        phalanx.train({"data": "digits"}, runs=tmp_path)


def test_a_notebook_sees_progress_and_curves(tmp_path: Path) -> None:
    shown: list[str] = []
    view = NotebookView(shown.append)
    view.run_started(tmp_path, JobSpec())
    view.progressed(
        RunProgress(
            epoch=1,
            epochs=4,
            epoch_share=0.5,
            samples=10,
            samples_per_s=1234.0,
            loss=0.5,
            accuracy=0.75,
            lr=0.1,
            activity="training",
            elapsed_s=1.0,
            eta_s=12.0,
        )
    )
    assert "value='0.375'" in shown[-1]
    assert "epoch 2/4" in shown[-1]
    run = RunDir.create(tmp_path, "run")
    with EventLog(run.events_path("worker-0")) as log:
        for number in range(3):
            log.record(
                Epoch(
                    epoch=number,
                    samples=10,
                    updates=1,
                    train_loss=1.0 / (number + 1),
                    train_accuracy=None,
                    regularisation=0.0,
                    val_loss=0.5,
                    val_accuracy=None,
                    lr=0.1,
                    train_s=1.0,
                    evaluate_s=0.0,
                )
            )
    page = as_result(make_summary(run_dir=str(run.path)))._repr_html_()
    assert page.count("<polyline") == 2
    assert "loss by epoch" in page
    assert "accuracy by epoch" not in page


def test_names_are_offered_for_completion() -> None:
    assert {"train", "resume", "open_run", "load_job"} <= set(dir(phalanx))
