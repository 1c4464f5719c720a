"""Seats on Ray, as far as no cluster is needed; tests/e2e/test_ray.py trains on a real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.pool.ray_seats import seats_in
from phalanx.spec.pool_file import load_pool


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "ray.yaml").write_text("scheduler: {name: ray, seats: 2}\n")
    with pytest.raises(SpecError, match=r"not installed here; .*`pip install 'phalanx\[ray\]'`"):
        load_pool(tmp_path / "ray.yaml")


@pytest.mark.parametrize(
    ("cores", "bundle", "seats"),
    [
        ((2.0, 2.0), {"CPU": 1.0}, 4),
        ((3.0, 1.0), {"CPU": 2.0}, 1),
        ((0.5,), {"CPU": 0.25}, 2),
        ((4.0,), {"CPU": 1.0, "memory": 600.0}, 1),
        ((), {"CPU": 1.0}, 0),
    ],
)
def test_room_for_seats_is_counted_node_by_node(
    cores: tuple[float, ...], bundle: dict[str, float], seats: int
) -> None:
    nodes = [{"Resources": {"CPU": one, "memory": 1000.0}} for one in cores]
    assert seats_in([*nodes, {"Resources": {}}], bundle) == seats
