"""Sizes that a machine is not meant for, and the examination in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phalanx.errors import LaunchError, SpecError
from phalanx.launch.job_check import CROWD, check_fit, check_job, check_sizes, crowding_note
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping

NETWORK = """
from torch import nn
print("what a user's module prints")
def narrow():
    return nn.Linear(5, 2)
"""


def test_far_more_workers_than_cores_are_refused() -> None:
    check_sizes(JobSpec(workers=2 * CROWD), num_cores=2)
    with pytest.raises(SpecError, match="300 workers would bring a machine with 2 usable cores"):
        check_sizes(JobSpec(workers=300), num_cores=2)


def test_more_workers_than_cores_are_told_what_that_costs() -> None:
    assert crowding_note(JobSpec(workers=2), num_cores=2) is None
    # Refused in a sentence that says the same.
    assert crowding_note(JobSpec(workers=300), num_cores=2) is None
    note = crowding_note(JobSpec(workers=5), num_cores=2)
    assert note is not None
    assert note.startswith("5 workers share 2 usable cores, 2.5 on each")


def test_more_workers_than_samples_in_a_step_are_refused_where_a_step_is_cut() -> None:
    job = {"workers": 12, "batch": {"global": 8}}
    with pytest.raises(SpecError, match="leaves 4 of 12 workers without a sample"):
        check_sizes(job_from_mapping(job), num_cores=2)
    check_sizes(job_from_mapping(job | {"strategy": "parameter_server"}), num_cores=2)


def test_a_network_is_asked_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examined.py").write_text(NETWORK)
    np.savez(tmp_path / "own.npz", x=np.ones((40, 6), np.float32), y=np.arange(40) % 2)
    job = job_from_mapping({"model": "examined:narrow", "data": "./own.npz"})
    with pytest.raises(SpecError, match="shapes cannot be multiplied") as caught:
        check_job(job, data_root=tmp_path, cache_root=tmp_path / "cache")
    assert "linear.py" in caught.value.facts["traceback"]


def test_fewer_samples_than_workers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((1, 6), np.float32), y=np.zeros(1, int))
    job = job_from_mapping({"model": "mlp", "data": str(tmp_path / "own.npz"), "workers": 2})
    with pytest.raises(SpecError, match="the data has 1 training samples for 2 workers"):
        check_job(job, data_root=tmp_path, cache_root=tmp_path / "cache")


def test_a_network_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    job = job_from_mapping({"data": "digits", "model": {"name": "cnn", "filters": 999_999_999}})
    with pytest.raises(LaunchError, match="use fewer workers or a smaller network"):
        check_fit(job, data_root=tmp_path, cache_root=tmp_path)


def test_built_in_parts_are_not_examined(tmp_path: Path) -> None:
    assert check_job(JobSpec(), data_root=tmp_path, cache_root=tmp_path).num_samples == 0
