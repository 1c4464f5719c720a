"""The choice of a compression in the first steps: by what, told, kept, and nothing lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from phalanx.comm.base import Collective
from phalanx.engine.replica import Replica
from phalanx.model.parts import drawing
from phalanx.spec.compression import AutoCompressionSpec
from phalanx.spec.loss import LossSpec
from phalanx.strategy.exchange import auto
from phalanx.strategy.exchange.auto import AutoExchange
from support.ranks import run_ranks

SIZE = 2


class SteppingClock:
    """Plays the clock of one worker: each step takes as long as the candidate in it is said to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def make(group: Collective, spec: AutoCompressionSpec) -> tuple[Replica, AutoExchange]:
    with drawing(0):
        module = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))
    replica = Replica(module, loss=LossSpec(), optimizer=None, bucket_bytes=3_000)
    return replica, AutoExchange(spec, replica, group)


def gradient(rank: int, step: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * rank + step))


def exchange(replica: Replica, by: AutoExchange, rank: int, step: int) -> Tensor:
    replica.gradients.copy_(gradient(rank, step, replica.gradients.numel()))
    by.begin(step)
    for index in range(len(replica.buckets)):
        by.start(index)
    by.finish()
    return replica.gradients.clone()


@pytest.mark.parametrize(
    ("accept", "times_s", "chosen"),
    [
        ("lossy", (0.8, 0.5, 0.3, 0.2), "powersgd rank 2"),
        ("lossy", (0.8, 0.5, 0.2, 0.3), "int8"),
        ("rounded", (0.8, 0.5, 0.3), "int8"),
        ("lossy", (0.2, 0.3, 0.3, 0.198), "none"),
    ],
)
def test_the_fastest_that_is_accepted_is_kept_and_told(
    monkeypatch: pytest.MonkeyPatch, accept: str, times_s: tuple[float, ...], chosen: str
) -> None:
    clock = SteppingClock()
    monkeypatch.setattr(auto, "time", clock)
    spec = AutoCompressionSpec(accept=accept, steps=2)  # type: ignore[arg-type]
    assert len(spec.candidates()) == len(times_s)

    def body(group: Collective) -> list[str | None]:
        replica, by = make(group, spec)
        notes = []
        for step in range(3 * len(times_s) + 2):
            exchange(replica, by, group.rank, step)
            notes.append(by.take_note())
            clock.now_s += times_s[min(step // 3, len(times_s) - 1)]
        return notes

    (notes,) = run_ranks(1, body)
    told = [(step, note) for step, note in enumerate(notes) if note is not None]
    assert [step for step, _ in told] == [3 * len(times_s)]
    assert told[0][1].startswith(f"compression auto: {chosen} is kept; a step took none ")


def test_nothing_is_lost_while_candidates_change() -> None:
    steps = 12

    def body(group: Collective) -> tuple[Tensor, Tensor, Tensor]:
        replica, by = make(group, AutoCompressionSpec(accept="lossy", steps=1))
        size = replica.gradients.numel()
        given = sum(
            (exchange(replica, by, group.rank, step) for step in range(steps)), torch.zeros(size)
        )
        own = sum((gradient(group.rank, step, size) for step in range(steps)), torch.zeros(size))
        return given, by.kept["residual"], own

    results = run_ranks(SIZE, body)
    whole = sum(own for _, _, own in results)
    owed = sum(kept for _, kept, _ in results)
    for given, _, _ in results:
        assert torch.equal(given, results[0][0])
        # Two steps were summed in bf16.
        assert float((given + owed - whole).norm()) < 0.02 * float(whole.norm())


@pytest.mark.parametrize("saved_after", [4, 11], ids=["while trying", "afterwards"])
def test_a_resumed_run_keeps_the_choice_and_what_is_owed(saved_after: int) -> None:
    spec = AutoCompressionSpec(accept="lossy", steps=1)

    def body(group: Collective) -> tuple[dict[str, Tensor], Tensor]:
        replica, by = make(group, spec)
        for step in range(saved_after):
            exchange(replica, by, group.rank, step)
        state = {name: tensor.clone() for name, tensor in by.export_state().items()}
        return state, exchange(replica, by, group.rank, saved_after)

    results = run_ranks(SIZE, body)
    state = results[0][0]

    def resumed(group: Collective) -> tuple[Tensor, Tensor, str | None]:
        replica, by = make(group, spec)
        by.import_state(state)
        kept = by.kept["residual"]
        return exchange(replica, by, group.rank, saved_after), kept, by.take_note()

    for rank, (found, kept, note) in enumerate(run_ranks(SIZE, resumed)):
        assert torch.equal(kept, state["residual"][rank])
        assert note is None
        if state["choice"].item() >= 0:
            assert torch.equal(found, results[rank][1])
