"""Build `srun` commands to a node of a Slurm allocation, and classify their failures.

One job step per node, which overlaps with whatever else runs in the allocation and has all of its
cores and memory there. When `srun` ends, however it ends, slurmd ends the processes of the step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from typing_extensions import override

from phalanx.agent.line import Fault
from phalanx.agent.piped import CommandRoute, FailureText

_FAILURES = FailureText(
    noise=re.compile(
        r"^(srun: (Job step|Force Terminated|launch/slurm|cluster configuration lacks|Warning: "
        r"|Check SLURM_JOB_ID|error: .*task 0: Exited|First task exited|Terminating)"
        r"|slurmstepd: .*CANCELLED|\s*$)"
    ),
    kinds=(
        (r"invalid job id|already complet|job has been revoked|job is no longer", "broken"),
        (r"invalid node name|nodes? .*not in .*allocation|not available in this", "unknown_host"),
        (r"not respond|connection failure|unable to contact|zero bytes", "unreachable"),
        (r"not found|no such file or directory|modulenotfounderror", "python"),
    ),
    advice={
        "unknown_host": "check the node list of the job (`scontrol show job`)",
        "unreachable": "check the state of the node (`scontrol show node`)",
        "python": "set 'defaults: {python: ...}' of the pool to an interpreter that every node has",
        "slow": "its slurmd may be overloaded",
    },
    otherwise="try the same with `srun` by hand",
)


@dataclass(frozen=True)
class SrunRoute(CommandRoute):
    """Way to one node of an allocation.

    Attributes:
        job: Number of the Slurm job.
    """

    job: int = field(kw_only=True)

    @override
    def command(self, remote: str) -> list[str]:
        return [
            "srun",
            f"--jobid={self.job}",
            f"--nodelist={self.machine.host}",
            *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none"),
            *("--unbuffered", "--kill-on-bad-exit=0", "--job-name=phalanx"),
            # A folder that every node has; that of the caller may be on a disk of its own.
            "--chdir=/",
            *("sh", "-c", remote),
        ]

    @override
    def again(self, connect_s: int) -> None:
        """Return nothing: slurmd has ended what ran over the broken line."""

    @override
    def explain(self, said: str, exit_code: int | None) -> Fault:
        return _FAILURES.explain(self.machine.title, "srun", said, exit_code)
