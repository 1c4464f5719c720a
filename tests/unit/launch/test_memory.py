from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import ExitCode, LaunchError
from phalanx.launch import job_check
from phalanx.launch.base import LaunchRequest
from phalanx.launch.local import LocalLauncher
from phalanx.launch.memory import PROCESS_BYTES, available_bytes, check_memory
from phalanx.spec.loader import job_from_mapping

GB = 10**9


def job_of(workers: int, **fields: object) -> dict[str, object]:
    return {"model": "mlp", "data": "digits", "workers": workers, **fields}


def test_more_workers_than_memory_allows_are_refused_with_the_numbers() -> None:
    served = {"name": "parameter_server", "servers": 2}
    job = job_from_mapping(job_of(100, strategy=served))
    with pytest.raises(LaunchError) as caught:
        check_memory(job, 8 * GB)
    assert str(caught.value) == (
        "103 processes (100 workers) need at least 21.6 GB of memory (200 MiB each), and 8.0 GB "
        "are available on this machine; use fewer workers or end other programs, or start all the "
        "same with --force"
    )
    assert caught.value.exit_code is ExitCode.LAUNCH


def test_what_fits_is_not_refused() -> None:
    job = job_from_mapping(job_of(4))
    check_memory(job, 4 * PROCESS_BYTES)
    with pytest.raises(LaunchError):
        check_memory(job, 4 * PROCESS_BYTES - 1)


def test_a_model_whose_size_is_known_counts() -> None:
    job = job_from_mapping(job_of(4))
    check_memory(job, 4 * GB, state_bytes=GB // 4)
    with pytest.raises(LaunchError, match=r"need at least 8\.8 GB"):
        check_memory(job, 4 * GB, state_bytes=GB)


def test_the_launcher_asks_before_it_starts_anything_and_can_be_overruled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert available_bytes() > PROCESS_BYTES
    monkeypatch.setattr(job_check, "available_bytes", lambda: GB)
    job = job_from_mapping(job_of(20))
    with pytest.raises(LaunchError, match=r"20 workers.*--force"):
        LocalLauncher(LaunchRequest(job, tmp_path, tmp_path)).check()
    LocalLauncher(LaunchRequest(job, tmp_path, tmp_path, force=True)).check()
