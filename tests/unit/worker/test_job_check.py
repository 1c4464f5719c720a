"""The check of a job before its first process: what it refuses, and what it lets pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from phalanx.records.job_check import JobAnswer, JobQuestion, needs_check
from phalanx.spec.loader import job_from_mapping
from phalanx.worker.job_check import examine

HERE = __name__


def fitting(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_classes))


def too_narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 4))


def too_few_classes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def broken() -> nn.Module:
    raise RuntimeError("no weights here")


def measured_while_built() -> nn.Module:
    layer = nn.Linear(6, 4)
    # Impossible without real tensors.
    assert float(layer.weight.detach().sum()) < 1e9
    return layer


def stored(path: Path, **changes: Any) -> Path:
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(64, 6)).astype(np.float32), "y": np.arange(64) % 4}
    np.savez(path, **(arrays | changes))
    return path


def check(tmp_path: Path, model: str, **changes: Any) -> JobAnswer:
    data = stored(tmp_path / "own.npz", **changes)
    job = {"model": f"{HERE}:{model}", "data": str(data)}
    cache = tmp_path / "cache"
    return examine(JobQuestion(job=job, data_root=str(tmp_path), cache_root=str(cache)))


@pytest.mark.parametrize("model", ["fitting", "measured_while_built"])
def test_a_network_that_fits_its_data_passes(model: str, tmp_path: Path) -> None:
    answer = check(tmp_path, model)
    assert answer.fault is None
    assert answer.notes == []
    assert answer.num_samples > 40


@pytest.mark.parametrize(
    ("model", "fault", "place"),
    [
        ("too_narrow", "shapes cannot be multiplied", "linear.py"),
        ("too_few_classes", "do not fit the model's 3 outputs", "cross_entropy"),
        ("broken", "raised RuntimeError: no weights here", "in broken"),
        ("absent", "has no 'absent'", ""),
    ],
)
def test_a_network_that_does_not_fit_is_refused_with_the_place(
    model: str, fault: str, place: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, model)
    assert fault in str(answer.fault)
    assert place in answer.traceback


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"model": "nowhere:build"}, "there is no module 'nowhere' among the installed packages"),
        ({"model": "nets.py:build"}, "named without .py: write nets:build"),
        ({"loss": "nowhere:focal"}, "No module named 'nowhere'"),
        ({"loss": "nets.py:focal"}, "named without .py: write nets:focal"),
        ({"metrics": ["nowhere:rate"]}, "No module named 'nowhere'"),
        ({"data": {"name": "digits", "augment": ["nowhere:blur"]}}, "No module named 'nowhere'"),
    ],
)
def test_a_part_that_cannot_be_imported_is_named_without_a_traceback(
    part: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    job = {"data": "digits", **part}
    assert needs_check(job_from_mapping(job))
    answer = examine(JobQuestion(job=job, data_root=str(tmp_path), cache_root=str(tmp_path)))
    assert fault in str(answer.fault)
    assert answer.traceback == ""


def test_a_built_in_network_is_counted_only_if_it_may_be_large(tmp_path: Path) -> None:
    assert not needs_check(job_from_mapping({"data": "digits", "model": "resnet"}))
    job = {"data": "digits", "model": {"name": "cnn", "filters": 99_999_999}}
    assert needs_check(job_from_mapping(job))
    answer = examine(JobQuestion(job=job, data_root=str(tmp_path), cache_root=str(tmp_path)))
    assert answer.fault is None
    assert answer.num_parameters > 10**10


def test_values_that_are_not_finite_are_refused_without_a_traceback(tmp_path: Path) -> None:
    inputs = np.zeros((64, 6), np.float32)
    inputs[5, 3] = np.nan
    answer = check(tmp_path, "fitting", x=inputs)
    assert "row 5 of the inputs holds a value that is not finite" in str(answer.fault)
    assert answer.traceback == ""


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"y": np.arange(64) % 3 - 1}, "label -1 is negative; number the classes from 0"),
        ({"y": np.arange(63) % 3}, "both need one row per sample"),
        ({"y": np.array(["a"] * 64)}, "are neither class labels"),
        ({"x": np.zeros((0, 6)), "y": np.arange(0)}, "holds no training samples"),
        ({"x": np.array([None] * 64)}, "not a .npz file of numbers; write it again"),
    ],
)
def test_arrays_that_cannot_be_learnt_from_are_refused(
    arrays: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, "fitting", **arrays)
    assert fault in str(answer.fault)
    assert answer.traceback == ""


def test_labels_with_gaps_are_pointed_out(tmp_path: Path) -> None:
    answer = check(tmp_path, "fitting", y=np.where(np.arange(64) % 2, 1000, 0))
    assert answer.fault is None
    assert "the largest label is 1000" in answer.notes[0]
    assert "999 of these classes have no sample" in answer.notes[0]
