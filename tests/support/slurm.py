"""A real Slurm on this machine: munged, slurmctld, and one slurmd for each of several nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "sbatch")
# Where daemons are, whatever the caller's PATH says.
PATH = f"{os.environ['PATH']}:/usr/sbin"  # noqa: TID251 (what a shell would search)
START_S = 30.0
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MpiDefault=none
ReturnToService=2
KillWait=5
JobRequeue=1
MinJobAge=300
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
"""


def missing_programs() -> list[str]:
    """What a Slurm needs and this machine has not."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


@dataclass(frozen=True)
class Slurm:
    """A running Slurm.

    Attributes:
        folder: Its state, logs and configuration.
        nodes: Names of its nodes.
        daemons: Its processes by name.
    """

    folder: Path
    nodes: tuple[str, ...]
    daemons: dict[str, subprocess.Popen[bytes]]

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which its commands find it."""
        own = {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
        return {**os.environ, **own}  # noqa: TID251 (handed on)

    def run(self, *command: str) -> str:
        """Run one of its commands; returns what it prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """State of a job, such as `RUNNING`."""
        [word] = [
            word.partition("=")[2]
            for word in self.run("scontrol", "-o", "show", "job", job).split()
            if word.startswith("JobState=")
        ]
        return word


@contextlib.contextmanager
def running_slurm(folder: Path, nodes: tuple[str, ...] = ("n1", "n2")) -> Iterator[Slurm]:
    """Start a Slurm whose nodes are this machine; everything of it ends with the block."""
    for name in ("state", *nodes):
        (folder / name).mkdir()
    ports = _free_ports(len(nodes) + 1)
    conf = _CONF.format(host=socket.gethostname(), folder=folder, port=ports[0])
    for name, port in zip(nodes, ports[1:], strict=True):
        conf += (
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            "CPUs=2 RealMemory=1000 State=UNKNOWN\n"
        )
    conf += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(conf)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    with contextlib.ExitStack() as stack:
        slurm = Slurm(folder, nodes, {})

        def start(name: str, *command: str) -> None:
            path = shutil.which(command[0], path=PATH)
            assert path is not None
            with (folder / f"{name}.out").open("wb") as out:
                slurm.daemons[name] = daemon = subprocess.Popen(
                    [path, *command[1:]],
                    env=slurm.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            stack.callback(_end, daemon)

        start(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={folder}/munge.sock"),
            *(f"--key-file={key}", f"--pid-file={folder}/munged.pid"),
            *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"),
        )
        wait_until((folder / "munge.sock").exists, "munged", limit_s=START_S)
        start("slurmctld", "slurmctld", "-D")
        for name in nodes:
            start(name, "slurmd", "-D", "-N", name)
        wait_until(lambda: _are_idle(slurm), "the nodes to be idle", limit_s=START_S)
        yield slurm


def _are_idle(slurm: Slurm) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"],
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    return done.stdout.split() == ["idle"] * len(slurm.nodes)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(START_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
