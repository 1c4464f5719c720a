"""Which processes a job needs, known before any is started."""

from __future__ import annotations

import pytest

from phalanx.spec.job import JobSpec
from phalanx.spec.processes import ProcessCounts, processes_of


@pytest.mark.parametrize(
    ("strategy", "servers", "evaluators"),
    [
        ("allreduce", 0, 0),
        ({"name": "local_sgd", "every": 4}, 0, 0),
        ({"name": "parameter_server", "servers": 2}, 2, 1),
        ({"name": "parameter_server", "servers": "colocated"}, 0, 1),
        ({"name": "switch", "at": 0.5}, 0, 1),
    ],
)
def test_helpers_follow_from_the_strategy(strategy: object, servers: int, evaluators: int) -> None:
    job = JobSpec.model_validate({"workers": 2, "strategy": strategy})
    assert processes_of(job) == ProcessCounts(2, servers, evaluators)


def test_a_switched_run_counts_the_most_servers_of_its_phases() -> None:
    phases = [
        {"strategy": {"name": "parameter_server", "servers": 1}},
        {"strategy": "allreduce", "at": 0.3},
        {"strategy": {"name": "parameter_server", "servers": 3}, "at": 0.6},
    ]
    job = JobSpec.model_validate({"workers": 2, "strategy": {"name": "switch", "phases": phases}})
    assert processes_of(job) == ProcessCounts(workers=2, servers=3, evaluators=1)
