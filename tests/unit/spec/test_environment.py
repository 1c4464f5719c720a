from __future__ import annotations

import json

from phalanx.spec.environment import Endpoint, environment_of, tf_config, torchrun_variables

EVERYBODY = [
    Endpoint("server", 0, "a", "10.0.0.1", 4000),
    Endpoint("worker", 0, "a", "10.0.0.1", 4001),
    Endpoint("worker", 1, "a", "10.0.0.1", 4002),
    Endpoint("worker", 2, "b", "10.0.0.2", 4001),
    Endpoint("evaluator", 0, "b", "10.0.0.2", 4002),
]


def test_workers_find_what_torchrun_would_tell_them() -> None:
    found = torchrun_variables(EVERYBODY[3], EVERYBODY, run="run-1")
    assert found == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "worker",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4001",
        "TORCHELASTIC_RUN_ID": "run-1",
    }
    second = torchrun_variables(EVERYBODY[2], EVERYBODY, run="run-1")
    assert (second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"]) == ("1", "2")


def test_every_role_finds_a_valid_cluster() -> None:
    tasks = {
        "server": {"type": "ps", "index": 0},
        "worker": {"type": "worker", "index": 2},
        "evaluator": {"type": "evaluator", "index": 0},
    }
    for one in (EVERYBODY[0], EVERYBODY[3], EVERYBODY[4]):
        found = json.loads(tf_config(one, EVERYBODY))
        assert found["task"] == tasks[one.role]
        assert found["cluster"] == {
            "ps": ["10.0.0.1:4000"],
            "worker": ["10.0.0.1:4001", "10.0.0.1:4002", "10.0.0.2:4001"],
        }


def test_a_worker_that_joins_later_is_beyond_those_who_began() -> None:
    late = Endpoint("worker", 3, "c", "10.0.0.3", 4000)
    found = environment_of(late, EVERYBODY, run="run-1")
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("3", "4", "0")
    assert found["MASTER_ADDR"] == "10.0.0.1"
    assert json.loads(found["TF_CONFIG"])["task"]["index"] == 3
