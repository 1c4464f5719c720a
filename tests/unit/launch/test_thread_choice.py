"""Threads of workers beside other programs: chosen once, before a run starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phalanx.cli.settings import fits_to_load
from phalanx.errors import SpecError
from phalanx.launch import thread_choice
from phalanx.launch.thread_choice import busy_beside, fit_threads, threads_beside_others
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cores", "workers", "busy", "threads"),
    [
        (2, 1, 0.0, 2),
        (2, 1, 0.4, 2),
        (2, 1, 0.6, 1),
        (2, 1, 2.0, 1),
        (2, 2, 0.0, 1),
        (8, 1, 2.0, 6),
        (8, 2, 2.0, 3),
        (8, 4, 0.0, 2),
        (8, 4, 9.0, 1),
        (3, 2, 0.0, 1),
    ],
)
def test_workers_take_the_cores_that_are_free(
    cores: int, workers: int, busy: float, threads: int
) -> None:
    assert threads_beside_others(cores, workers, busy) == threads


def test_the_choice_is_written_into_the_job_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(thread_choice, "busy_beside", lambda _: 2.9)
    job, notes = fit_threads(JobSpec())
    assert (job.threads, job.pin) == (1, False)
    assert "other programs use 2.9 of 4 cores, so each worker computes with 1" in notes[0]
    # A resumed run reads it from the manifest.
    assert job_from_mapping(to_mapping(job)) == job
    assert fit_threads(JobSpec(threads=4)) == (JobSpec(threads=4), ())
    monkeypatch.setattr(thread_choice, "busy_beside", lambda _: 0.1)
    assert fit_threads(JobSpec()) == (JobSpec(), ())


def test_what_this_process_and_its_children_use_is_not_that_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    monkeypatch.setattr(thread_choice, "WATCH_S", 1.0)
    busy = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = thread_choice._own_s()
        beside = busy_beside(CORES)
        used = thread_choice._own_s() - own
        child.kill()
    assert used > 0.1
    # Together they use about what there is, not the child's part twice.
    assert beside + used <= 1.2 * len(CORES)


def test_a_burst_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.2, 9.0, 9.0))
    assert busy_beside(CORES) <= 0.2


def test_the_variable_keeps_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fits_to_load()
    monkeypatch.setenv("PHALANX_THREADS", "")
    assert fits_to_load()
    monkeypatch.setenv("PHALANX_THREADS", "some")
    with pytest.raises(SpecError, match="PHALANX_THREADS is 'some'; set it to all"):
        fits_to_load()
