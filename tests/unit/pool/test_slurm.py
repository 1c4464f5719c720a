"""What Slurm says of a job, as machines; a real Slurm is asked in tests/e2e/test_slurm.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.agent.srun import SrunRoute
from phalanx.errors import SpecError
from phalanx.pool.slurm import SlurmJob, read_job
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool_file import load_pool

# As `scontrol --oneliner --details show job 17` prints it, without what nobody reads.
SAID = (
    "JobId=17 JobName=a=b JobState=RUNNING Requeue=1 Restarts=2 NodeList=big,small[1-2] "
    "NumNodes=3 NumCPUs=14 NumTasks=5 CPUs/Task=2 "
    "Nodes=big CPU_IDs=0-7,12-13 Mem=0 GRES= Nodes=small[1-2] CPU_IDs=0-1 Mem=0 GRES="
)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of Slurm's, for what a real one says on larger clusters."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *hostnames\\ big*) echo big small1 small2;; '
        f"*hostnames*) echo small1 small2;; *) echo '{SAID}';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def test_unequal_nodes_and_cores_are_told_apart(scontrol: Path) -> None:
    job = read_job(17)
    assert job == SlurmJob(
        number=17,
        cores={"big": 10, "small1": 2, "small2": 2},
        num_tasks=5,
        cores_per_task=2,
        restarts=2,
    )
    assert job.tasks == {"big": 3, "small1": 1, "small2": 1}


@pytest.mark.parametrize(
    ("cores", "num_tasks", "tasks"),
    [((2, 2), 2, (1, 1)), ((2, 2), 4, (2, 2)), ((4, 1), 4, (3, 1)), ((2, 2), 9, (2, 2))],
)
def test_tasks_are_spread_as_evenly_as_the_cores_allow(
    cores: tuple[int, int], num_tasks: int, tasks: tuple[int, int]
) -> None:
    job = SlurmJob(number=1, cores=dict(zip("ab", cores, strict=True)), num_tasks=num_tasks)
    assert tuple(job.tasks.values()) == tasks


def test_a_job_that_waits_has_no_machines(scontrol: Path) -> None:
    scontrol.write_text("#!/bin/sh\necho JobId=17 JobState=PENDING NodeList=\n")
    with pytest.raises(SpecError, match=r"^Slurm job 17 is pending and has no nodes to train on$"):
        read_job(17)


def test_what_slurm_refuses_is_one_sentence(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol.write_text("#!/bin/sh\necho slurm_load_jobs error: Invalid job id >&2; exit 1\n")
    with pytest.raises(SpecError, match=r"failed: slurm_load_jobs error: Invalid job id$"):
        read_job(17)
    monkeypatch.setenv("PATH", str(scontrol.parents[1]))
    with pytest.raises(SpecError, match=r"`scontrol`, which is not installed here$"):
        read_job(17)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("scheduler: slurm", "this command runs in none; start it with `sbatch`"),
        ("scheduler: slrum", "unknown scheduler 'slrum'; did you mean 'slurm'?"),
        ("scheduler: {name: slurm, jib: 3}", "unknown key 'jib' in scheduler; did you mean 'job'?"),
        ("scheduler: slurm\nmachines: [a]", "a pool has machines or a scheduler"),
        ("scheduler: slurm\ndefaults: {slots: 0}", "slots"),
    ],
)
def test_mistakes_in_a_pool_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, message: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "slurm.yaml").write_text(pool)
    with pytest.raises(SpecError, match=re.escape(message)):
        load_pool(tmp_path / "slurm.yaml")


@pytest.mark.parametrize(
    ("said", "code", "kind", "reason"),
    [
        ("sh: 1: exec: /x/python: not found\nsrun: error: n1: task 0: Exited with exit code 127",
         127, "python", "sh: 1: exec: /x/python: not found; set 'defaults: {python"),
        ("srun: error: Unable to confirm allocation for job 9: Invalid job id specified\n"
         "srun: Check SLURM_JOB_ID environment variable.",
         1, "broken", "Unable to confirm allocation for job 9: Invalid job id specified; try"),
        ("", None, "slow", "no answer in time; its slurmd may be overloaded"),
        ("", 1, "broken", "ended with code 1; try the same"),
    ],
)  # fmt: skip
def test_failures_of_srun_are_classified(
    said: str, code: int | None, kind: str, reason: str
) -> None:
    fault = SrunRoute(MachineSpec(host="n1"), job=9).explain(said, code)
    assert (fault.machine, fault.kind) == ("n1", kind)
    assert fault.reason.startswith(reason)
