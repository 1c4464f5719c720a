"""Build the environment variables of a process, as torchrun and `tf.distribute` name them. Pure.

torchrun sets RANK, WORLD_SIZE and others, `tf.distribute` reads TF_CONFIG. Phalanx needs neither:
they are for models, data code and other frameworks that it starts. Variables carry no secrets,
because other users of the machine may read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

# The names of roles in TF_CONFIG; without a separate chief, it is the first worker.
_TASKS = {"chief": "chief", "worker": "worker", "server": "ps", "evaluator": "evaluator"}


@dataclass(frozen=True)
class Endpoint:
    """Address of a process, as other processes see it.

    Attributes:
        role: chief, worker, server or evaluator.
        rank: Index among its role.
        machine: Where it runs.
        address: Where it can be reached.
        port: A port that was free there when the run began, for servers of the user's code.
    """

    role: str
    rank: int
    machine: str
    address: str
    port: int


def environment_of(one: Endpoint, everybody: Sequence[Endpoint], *, run: str) -> dict[str, str]:
    """Return the variables of one process.

    Args:
        one: The process.
        everybody: All processes that the run began with.
        run: Name of the run.
    """
    return {**torchrun_variables(one, everybody, run=run), "TF_CONFIG": tf_config(one, everybody)}


def torchrun_variables(one: Endpoint, everybody: Sequence[Endpoint], *, run: str) -> dict[str, str]:
    """Return what torchrun would set: ranks count the processes of the same role."""
    peers = [other for other in everybody if other.role == one.role]
    machines = list(dict.fromkeys(other.machine for other in peers))
    here = [other for other in peers if other.machine == one.machine]
    first = min(peers, key=lambda other: other.rank, default=one)
    variables: dict[str, object] = {
        "RANK": one.rank,
        "WORLD_SIZE": max(len(peers), one.rank + 1),
        "LOCAL_RANK": sum(other.rank < one.rank for other in here),
        "LOCAL_WORLD_SIZE": max(1, len(here)),
        "GROUP_RANK": machines.index(one.machine) if one.machine in machines else len(machines),
        "GROUP_WORLD_SIZE": max(1, len(machines)),
        "ROLE_NAME": one.role,
        "ROLE_RANK": one.rank,
        "ROLE_WORLD_SIZE": max(len(peers), one.rank + 1),
        "MASTER_ADDR": first.address,
        "MASTER_PORT": first.port,
        "TORCHELASTIC_RUN_ID": run,
    }
    return {name: str(value) for name, value in variables.items()}


def tf_config(one: Endpoint, everybody: Sequence[Endpoint]) -> str:
    """Return TF_CONFIG: all tasks of the run, and which of them the process is.

    Evaluators are not part of the cluster, as `tf.distribute` wants it.
    """
    cluster: dict[str, list[str]] = {}
    for other in sorted(everybody, key=lambda other: (_TASKS[other.role], other.rank)):
        if other.role != "evaluator":
            tasks = cluster.setdefault(_TASKS[other.role], [])
            tasks.append(f"{other.address}:{other.port}")
    own = {"type": _TASKS[one.role], "index": one.rank}
    return json.dumps({"cluster": cluster, "task": own}, sort_keys=True)
