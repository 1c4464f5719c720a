from __future__ import annotations

import pytest

from phalanx.launch.placement import CoreShare, share_cores


@pytest.mark.parametrize(
    ("cores", "workers", "threads", "expected"),
    [
        ([0, 1], 2, "auto", [(1, (0,)), (1, (1,))]),
        ([0, 1, 2, 3], 2, "auto", [(2, (0, 1)), (2, (2, 3))]),
        ([4, 9, 11], 1, "auto", [(3, (4, 9, 11))]),
        # Three cores for two workers: one each, and one left for everybody else.
        ([0, 1, 2], 2, "auto", [(1, (0,)), (1, (1,))]),
        # Twice as many workers as cores: two on each core.
        ([0, 1], 4, "auto", [(1, (0,)), (1, (1,)), (1, (0,)), (1, (1,))]),
        # Three workers on two cores: any binding would be unfair.
        ([0, 1], 3, "auto", [(1, ()), (1, ()), (1, ())]),
        # Asked for more threads than there are cores: let the system share them out.
        ([0, 1], 2, 2, [(2, ()), (2, ())]),
        ([0, 1, 2, 3], 2, 1, [(1, (0,)), (1, (1,))]),
    ],
)
def test_cores_are_shared_out(
    cores: list[int], workers: int, threads: int, expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    shares = share_cores(cores, workers, threads=threads, pin=True)
    assert shares == [CoreShare(threads=count, cpus=cpus) for count, cpus in expected]


def test_without_pinning_nobody_is_bound() -> None:
    shares = share_cores([0, 1, 2, 3], 2, threads="auto", pin=False)
    assert shares == [CoreShare(threads=2, cpus=())] * 2
