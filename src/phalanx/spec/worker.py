"""The WorkerSpec: the one thing that a launched process receives, on its standard input."""

from __future__ import annotations

from pydantic import Field

from phalanx.spec.backend import BACKENDS
from phalanx.spec.base import ListOf, Spec
from phalanx.spec.job import JobSpec

LOOPBACK = "127.0.0.1"


class WorkerSpec(Spec):
    """Everything a process needs to know to take part in a run."""

    job: JobSpec
    """What the run is to do."""
    role: str
    """worker, server or evaluator."""
    rank: int
    """Index among the processes of this role."""
    incarnation: int
    """How often this process has been started in this attempt, from 1."""
    host: str = ""
    """Machine that it runs on, as tables and messages call it; empty: as its system does."""
    address: str = LOOPBACK
    """Where its own sockets listen, and where the other processes of the run reach them."""
    run_dir: str
    """Where records go, on the machine of this process."""
    shared_run_dir: bool = True
    """Whether that is the controller's own run directory. If not, checkpoints and the state of
    servers go to the controller's machine, and come from there, through the store server."""
    store_port: int = 0
    """Port of the store server, on the host of `control_address`; 0: this process needs none."""
    data_root: str
    """Where data sets lie."""
    cache_root: str
    """Where decoded data is kept."""
    threads: int
    """Compute threads."""
    cpus: ListOf[int]
    """Cores this process is bound to; empty: any."""
    attempt: int
    """1 for the first start of the run, one more for each resume."""
    resume: str | None
    """The checkpoint to continue from."""
    control_address: str
    """Where the controller listens."""
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
    parent_pid: int | None
    """The process to die with, which runs on the same machine; whoever starts it fills that in."""

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
        """What a launcher starts as `python -m`."""
        return BACKENDS.find(self.job.backend).module

    @property
    def can_fork(self) -> bool:
        """Whether it may be forked from a process that has imported its framework."""
        return BACKENDS.find(self.job.backend).can_fork
