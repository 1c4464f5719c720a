"""The use of all machines together, whose samples are taken at different moments."""

from __future__ import annotations

import pytest

from phalanx.records.cluster_use import cluster_use
from phalanx.records.usage import ResourceUse, UsePoint


def machine(
    name: str, cores: int, *points: tuple[float, float], load: float | None = 1
) -> ResourceUse:
    """A machine whose points are (end of the interval, busy cores); the rest follows from these."""
    series = [
        UsePoint(
            t_s=t_s,
            cpu_cores=busy,
            cpu_share=busy / cores,
            memory_bytes=100 * busy,
            received_bytes_per_s={"lo": busy, "eth0": 2 * busy},
            sent_bytes_per_s={"eth0": 5 * busy},
            load=load,
        )
        for t_s, busy in points
    ]
    return ResourceUse(
        name=name,
        host=name,
        duration_s=points[-1][0] if points else 0.0,
        cores=cores,
        cpu_user_s=0.0,
        cpu_system_s=0.0,
        cpu_cores=0.0,
        cpu_share=None,
        core_shares=[],
        load_mean=None,
        memory_mean_bytes=0.0,
        memory_peak_bytes=0,
        memory_total_bytes=None,
        received_bytes={},
        sent_bytes={},
        read_bytes=None,
        written_bytes=None,
        series=series,
    )


def test_machines_are_summed_at_common_moments() -> None:
    # Busy cores together: 1 + 4 until second 4, 3 + 4 until 6, then 3 + 0.
    found = cluster_use(
        [machine("a", 4, (4.0, 1.0), (10.0, 3.0)), machine("b", 4, (6.0, 4.0), (10.0, 0.0))]
    )
    assert found is not None
    assert found.num_machines == 2
    assert (found.cpu_share.least, found.cpu_share.greatest) == (3 / 8, 7 / 8)
    assert found.cpu_share.mean == pytest.approx((4 * 5 + 2 * 7 + 4 * 3) / 10 / 8, rel=0.01)
    assert found.memory_bytes.greatest == 700
    assert found.received_bytes_per_s.greatest == 3 * 7
    assert found.sent_bytes_per_s.least == 5 * 3
    assert found.load is not None
    assert found.load.mean == 2


def test_a_machine_without_samples_is_no_part_and_one_without_load_leaves_it_out() -> None:
    found = cluster_use([machine("a", 2, (1.0, 1.0), load=None), machine("b", 2)])
    assert found is not None
    assert (found.num_machines, found.load) == (1, None)
    assert cluster_use([machine("b", 2)]) is None
