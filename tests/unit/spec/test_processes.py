"""Which processes a job needs, known before any is started."""

from __future__ import annotations

import pytest

from phalanx.spec.job import JobSpec
from phalanx.spec.processes import processes_of

WORKERS = [("worker", 0), ("worker", 1)]
EVALUATOR = ("evaluator", 0)


@pytest.mark.parametrize(
    ("strategy", "helpers"),
    [
        ("allreduce", []),
        ({"name": "local_sgd", "every": 4}, []),
        ({"name": "parameter_server", "servers": 2}, [("server", 0), ("server", 1), EVALUATOR]),
        ({"name": "parameter_server", "servers": "colocated"}, [EVALUATOR]),
        ({"name": "switch", "at": 0.5}, [EVALUATOR]),
    ],
)
def test_helpers_follow_from_the_strategy(strategy: object, helpers: list[tuple[str, int]]) -> None:
    job = JobSpec.model_validate({"workers": 2, "strategy": strategy})
    assert processes_of(job) == WORKERS + helpers


def test_a_switched_run_counts_the_most_servers_of_its_phases() -> None:
    phases = [
        {"strategy": {"name": "parameter_server", "servers": 1}},
        {"strategy": "allreduce", "at": 0.3},
        {"strategy": {"name": "parameter_server", "servers": 3}, "at": 0.6},
    ]
    job = JobSpec.model_validate({"workers": 2, "strategy": {"name": "switch", "phases": phases}})
    assert len([one for one in processes_of(job) if one[0] == "server"]) == 3
