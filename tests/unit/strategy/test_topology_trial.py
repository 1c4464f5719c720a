"""The choice of a topology by measurement: by what, told once, kept, the same on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.solo import SoloCollective
from phalanx.strategy import topology_trial
from phalanx.strategy.topology_trial import TopologyTrial
from support.ranks import over_mesh, run_ranks

SIZES = [40_000, 60_000]


@pytest.mark.parametrize(
    ("times_s", "chosen"),
    [
        ((0.4, 0.3, 0.2, 0.1), "butterfly"),
        ((0.4, 0.2, 0.3, 0.3), "ring"),
        # Not worth another order of sums.
        ((0.4, 0.395, 0.39, 0.5), "direct"),
    ],
)
def test_the_fastest_for_the_slowest_worker_is_kept_and_told(
    times_s: Sequence[float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(group: Collective, name: str, tensors: Sequence[Tensor]) -> float:
        assert [one.nbytes for one in tensors] == SIZES
        seconds = times_s[group.topologies().index(name)]
        # All but the last one see no difference.
        return seconds if group.rank == group.size - 1 else 0.05

    monkeypatch.setattr(topology_trial, "_timed", timed)

    def body(group: MeshCollective) -> tuple[str, bytes]:
        trial = TopologyTrial("auto", group)
        assert trial.export_state() == {}
        trial.settle([])
        assert trial.take_note() is None
        trial.settle(SIZES)
        note = trial.take_note()
        assert note is not None
        assert f"{chosen} is kept" in note
        assert "tree 200.0 ms" in note or chosen != "butterfly"
        assert trial.take_note() is None
        size, *name = trial.export_state()["topology"].tolist()
        assert size == group.size
        return chosen, bytes(name)

    assert run_ranks(3, body, over_mesh) == [(chosen, chosen.encode())] * 3


def test_all_measure_the_same_and_a_checkpoint_spares_it() -> None:
    def body(group: MeshCollective) -> tuple[list[int], int]:
        trial = TopologyTrial("auto", group)
        trial.settle(SIZES)
        state = trial.export_state()
        restored = TopologyTrial("auto", group)
        restored.import_state(state)
        before = group.sent_bytes
        restored.settle(SIZES)
        assert restored.take_note() is None
        tensor = torch.full((20_000,), 1.0)
        group.all_reduce(tensor)
        assert tensor[7].item() == 3.0
        # Another number of workers: measured anew.
        other = TopologyTrial("auto", group)
        four = state["topology"].clone()
        four[0] = 4
        other.import_state({"topology": four})
        other.settle(SIZES)
        assert other.take_note() is not None
        return state["topology"].tolist(), before

    found = run_ranks(3, body, over_mesh)
    assert len({tuple(choice) for choice, _ in found}) == 1


def test_a_setting_is_used_and_nothing_measured() -> None:
    def body(group: MeshCollective) -> dict[str, Tensor]:
        trial = TopologyTrial("tree", group)
        trial.settle(SIZES)
        assert trial.take_note() is None
        trial.import_state({"topology": torch.tensor([3, *b"ring"])})
        return trial.export_state()

    assert run_ranks(3, body, over_mesh) == [{}] * 3


def test_a_group_with_one_way_has_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_trial, "_timed", partial(pytest.fail, "nothing to measure"))
    trial = TopologyTrial("auto", SoloCollective())
    trial.settle(SIZES)
    assert trial.take_note() is None


def test_a_trial_sums_no_more_than_its_memory() -> None:
    most = topology_trial._MOST_BYTES
    assert topology_trial._within([3 * most, 5]) == [most]
    assert topology_trial._within([10, 20, most, 30]) == [10, 20]
