"""Describe the WorkerSpec: the only input of a launched process, on its standard input."""

from __future__ import annotations

from pydantic import Field

from phalanx.spec.backend import BACKENDS
from phalanx.spec.base import ListOf, Spec
from phalanx.spec.job import JobSpec

LOOPBACK = "127.0.0.1"


class WorkerSpec(Spec):
    """Settings with which one process takes part in a run."""

    job: JobSpec
    """Job of the run."""
    role: str
    """worker, server or evaluator."""
    rank: int
    """Index among the processes of this role."""
    incarnation: int
    """How often this process has been started in this attempt, from 1."""
    host: str = ""
    """Name of its machine in tables and messages; empty: the system's host name."""
    address: str = LOOPBACK
    """Address of its sockets, both to listen on and for the other processes of the run."""
    run_dir: str
    """Directory for records, on the machine of this process."""
    shared_run_dir: bool = True
    """Whether that is the controller's run directory. If not, checkpoints and server state travel
    to and from the controller's machine through the store server."""
    store_port: int = 0
    """Port of the store server, on the host of `control_address`; 0: this process needs none."""
    data_root: str
    """Folder of data sets."""
    cache_root: str
    """Folder of decoded data."""
    threads: int
    """Compute threads."""
    cpus: ListOf[int]
    """Cores this process is bound to; empty: any."""
    attempt: int
    """1 for the first start of the run, one more for each resume."""
    resume: str | None
    """The checkpoint to continue from."""
    control_address: str
    """Address of the controller."""
    controller_key: str
    """The controller's public key."""
    public_key: str
    """This process's own public key."""
    secret_key: str = Field(repr=False)
    """This process's own secret key."""
    environment: dict[str, str] = {}
    """Variables for the user's code and other frameworks, as torchrun and TensorFlow name them."""
    watch_host: bool = False
    """Whether this process measures its whole machine; one on each machine does."""
    baseline_s: float = 0.0
    """Seconds to rest before the work begins, so that the idle machine can be measured."""
    network_pid: int | None = None
    """Process on the same machine whose network namespace to enter; filled in by the launcher."""
    parent_pid: int | None
    """Process on the same machine to die with; filled in by the launcher or agent starting it."""

    @property
    def process(self) -> str:
        """The name of this process in logs and messages, such as worker-0."""
        return f"{self.role}-{self.rank}"

    @property
    def is_networked(self) -> bool:
        """Whether what it sends may leave this machine."""
        return self.address != LOOPBACK

    @property
    def module(self) -> str:
        """Module that a launcher starts with `python -m`."""
        return BACKENDS.find(self.job.backend).module

    @property
    def can_fork(self) -> bool:
        """Whether it may be forked from a process that has imported its framework."""
        return BACKENDS.find(self.job.backend).can_fork
