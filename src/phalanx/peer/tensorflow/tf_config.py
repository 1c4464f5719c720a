"""TF_CONFIG: who is where in TensorFlow's cluster, as JSON for each process. Pure.

A process of ours has a name such as `server-0`; TensorFlow calls it task 0 of type `ps`. In a
cluster without a chief of its own the first worker is the chief. The evaluator stands outside the
cluster: nobody sends it work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

_TYPES = {"chief": "chief", "server": "ps", "worker": "worker", "evaluator": "evaluator"}
_OUTSIDE = ("evaluator",)


def task_of(process: str) -> tuple[str, int]:
    """TensorFlow's type and index of a process of ours."""
    role, _, rank = process.partition("-")
    return _TYPES[role], int(rank)


def members(processes: Iterable[str]) -> list[str]:
    """The processes that are part of the cluster, and need an address."""
    return [one for one in processes if task_of(one)[0] not in _OUTSIDE]


def tf_config(addresses: Mapping[str, str], process: str) -> str:
    """The TF_CONFIG of one process.

    Args:
        addresses: host:port of every member of the cluster, by name; ranks of a role have no gaps.
        process: Whose; a member, or the evaluator.

    Raises:
        ValueError: The process is not a member, or a rank is missing.
    """
    cluster: dict[str, dict[int, str]] = {}
    for name, address in addresses.items():
        kind, index = task_of(name)
        cluster.setdefault(kind, {})[index] = address
    for kind, tasks in cluster.items():
        if sorted(tasks) != list(range(len(tasks))):
            raise ValueError(f"the {kind} tasks are {sorted(tasks)}, which leaves a gap")
    own_kind, own_index = task_of(process)
    if own_kind not in _OUTSIDE and own_index not in cluster.get(own_kind, {}):
        raise ValueError(f"{process} is not among {', '.join(addresses)}")
    return json.dumps(
        {
            "cluster": {
                kind: [tasks[index] for index in range(len(tasks))]
                for kind, tasks in sorted(cluster.items())
            },
            "task": {"type": own_kind, "index": own_index},
        }
    )


def tf_configs(addresses: Mapping[str, str], outside: Iterable[str] = ()) -> dict[str, str]:
    """The TF_CONFIG of every process.

    Args:
        addresses: As in `tf_config`.
        outside: Processes without an address, such as the evaluator.
    """
    return {name: tf_config(addresses, name) for name in (*addresses, *outside)}
