"""The commands as a user runs them: real processes, real training, real failures."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from phalanx.records.summary import Summary

JOB = "data: digits\nmodel: cnn\nepochs: 2\nworkers: 2\noptimizer: {name: sgd, lr: 0.1}\n"
LIMIT_S = 100


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "phalanx.cli.main", *arguments]


def phalanx(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", f"PHALANX_DATA={place}", *command(*arguments)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_train_show_and_resume(place: Path) -> None:
    first = phalanx(place, "train", "job.yaml", "--json")
    assert first.returncode == 0
    assert "epoch 2/2 done" in first.stderr
    summary = json.loads(first.stdout)
    assert set(summary) == set(Summary.__struct_fields__)
    assert (summary["epochs"], summary["workers"], summary["strategy"]) == (2, 2, "allreduce")
    assert summary["bytes_sent"] > 0

    resumed = phalanx(place, "train", "--resume", "last", "--epochs", "3")
    assert resumed.returncode == 0
    assert "epoch 3/3 done  train loss" in resumed.stdout
    assert "finished after 3 epochs" in resumed.stdout

    (row,) = json.loads(phalanx(place, "runs", "list", "--json").stdout)
    assert (row["state"], row["epochs"]) == ("finished", 3)
    shown = phalanx(place, "runs", "show", "job-")
    assert "finished, attempt 2" in shown.stdout
    assert "samples/s" in shown.stdout


def test_quiet_says_nothing(place: Path) -> None:
    done = phalanx(place, "train", "job.yaml", "--quiet", "--epochs", "1", "--workers", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_data_ends_with_one_sentence(place: Path) -> None:
    done = phalanx(place, "train", "job.yaml", "--quiet", "--set", "data=mnist")
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx: ")
    assert done.stderr.count("\n") == 1
    assert "phalanx data fetch mnist" in done.stderr


def test_a_loss_that_is_not_finite_ends_with_advice_and_the_place_of_the_logs(place: Path) -> None:
    done = phalanx(place, "train", "job.yaml", "--quiet", "--set", "optimizer.lr=1e30")
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert "lower optimizer.lr" in lines[-1]
    assert lines[-1].startswith("phalanx: ")
    assert any("logs" in line for line in lines[:-1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_all_its_processes(
    place: Path, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        command("train", "job.yaml", "--epochs", "100000"),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "epoch 1/" in line:
                break
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    # The last line can be typed as it stands.
    found = re.search("`phalanx (train --resume .*)`$", errors.strip().splitlines()[-1])
    assert found is not None
    assert (place / shlex.split(found[1])[-1] / "manifest.json").is_file()
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_demo_compares_three_strategies(place: Path) -> None:
    done = subprocess.run(
        command("demo", "--runs", str(place / "runs"), "--json"),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0
    comparison = json.loads(done.stdout)["comparison"]
    assert [row["strategy"] for row in comparison] == ["single", "allreduce", "local_sgd"]
    assert all(row["test_accuracy"] > 0.9 for row in comparison)
    assert comparison[0]["bytes_sent"] == 0
    assert 0 < comparison[2]["bytes_sent"] < comparison[1]["bytes_sent"]
    assert len(list((place / "runs").iterdir())) == 3
