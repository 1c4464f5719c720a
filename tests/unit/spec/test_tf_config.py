"""TF_CONFIG for every role, in the clusters that tf.distribute knows."""

from __future__ import annotations

import json

import pytest

from phalanx.spec.environment import Endpoint, tf_config

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def cluster(*processes: str) -> list[Endpoint]:
    """Processes over three hosts, the n-th at port 5000 + n."""
    return [
        Endpoint(
            role=name.split("-")[0],
            rank=int(name.split("-")[1]),
            machine=HOSTS[number % 3],
            address=HOSTS[number % 3],
            port=5000 + number,
        )
        for number, name in enumerate(processes)
    ]


MIRRORED = cluster("worker-0", "worker-1", "worker-2")
SERVING = cluster("chief-0", "worker-1", "server-0", "worker-0", "server-1")


def test_workers_that_step_together_have_no_chief_of_their_own() -> None:
    for rank, one in enumerate(MIRRORED):
        assert json.loads(tf_config(one, MIRRORED)) == {
            "cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5001", "10.0.0.3:5002"]},
            "task": {"type": "worker", "index": rank},
        }


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("chief-0", {"type": "chief", "index": 0}),
        ("server-1", {"type": "ps", "index": 1}),
        ("worker-0", {"type": "worker", "index": 0}),
        ("worker-1", {"type": "worker", "index": 1}),
    ],
)
def test_every_role_of_a_parameter_server_finds_its_task(
    name: str, task: dict[str, object]
) -> None:
    [own] = [one for one in SERVING if f"{one.role}-{one.rank}" == name]
    assert json.loads(tf_config(own, SERVING)) == {
        "cluster": {
            "chief": ["10.0.0.1:5000"],
            "ps": ["10.0.0.3:5002", "10.0.0.2:5004"],
            "worker": ["10.0.0.1:5003", "10.0.0.2:5001"],
        },
        "task": task,
    }


def test_the_evaluator_stands_outside_the_cluster() -> None:
    [evaluator] = cluster("evaluator-0")
    found = json.loads(tf_config(evaluator, [*SERVING, evaluator]))
    assert found["task"] == {"type": "evaluator", "index": 0}
    assert sorted(found["cluster"]) == ["chief", "ps", "worker"]
