"""A replica: exact shares, empty shares, dropout by step, evaluation, saved state."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from phalanx.engine.precision import Precision
from phalanx.engine.replica import Replica
from phalanx.engine.rng import draw_seed
from phalanx.errors import EngineError
from phalanx.model.catalogue import build_model
from phalanx.spec.loss import LossSpec
from phalanx.spec.model import CnnSpec, MlpSpec, ModelSpec, ResnetSpec
from phalanx.spec.optimize import AdamSpec, OptimizerSpec, SgdSpec

CNN = CnnSpec(filters=4, dense=8)
RESNET = ResnetSpec(n=1)


@dataclass(frozen=True)
class Samples:
    inputs: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64]
    global_count: int
    fields: tuple[()] = ()

    def part(self, start: int, stop: int) -> "Samples":
        return Samples(self.inputs[start:stop], self.targets[start:stop], self.global_count)


def samples(count: int = 12) -> Samples:
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((count, 8, 8, 1), dtype=np.float32)
    return Samples(inputs, generator.integers(0, 10, count), count)


def replica(
    model: ModelSpec = CNN,
    optimizer: OptimizerSpec | None = SgdSpec(momentum=0.9),  # noqa: B008 - frozen
    *,
    precision: Precision = "fp32",
    rank: int = 0,
) -> Replica:
    return Replica(
        build_model(model, input_shape=(8, 8, 1), num_classes=10, seed=1),
        loss=LossSpec(),
        optimizer=optimizer,
        precision=precision,
        seed=7,
        rank=rank,
    )


def test_unequal_shares_add_up_to_the_global_mean() -> None:
    batch = samples()
    whole = replica()
    result = whole.forward_backward(batch, step=0)
    summed = torch.zeros_like(whole.gradients)
    loss, correct, count = 0.0, 0, 0
    for start, stop in ((0, 1), (1, 8), (8, 8), (8, 12)):
        worker = replica()
        part = worker.forward_backward(batch.part(start, stop), step=0)
        summed += worker.gradients
        loss, correct, count = (
            loss + part.loss_sum,
            correct + part.num_correct,
            count + part.num_samples,
        )
    torch.testing.assert_close(summed, whole.gradients, rtol=1e-4, atol=1e-6)
    assert (correct, count) == (result.num_correct, 12)
    assert loss == pytest.approx(result.loss_sum, rel=1e-5)


def test_training_lowers_the_loss() -> None:
    trained = replica()
    first = trained.forward_backward(samples(), step=0).loss_sum
    for step in range(30):
        trained.forward_backward(samples(), step=step)
        trained.apply(0.05)
    assert trained.evaluate(samples()).loss_sum < first / 4


def test_a_share_without_samples_reports_every_bucket() -> None:
    worker = replica(RESNET)
    worker.forward_backward(samples(), step=0)
    statistics = worker.buffers.clone()
    seen: list[int] = []
    result = worker.forward_backward(samples().part(0, 0), seen.append, step=1)
    assert (result.loss_sum, result.num_correct, result.num_samples) == (0.0, 0, 0)
    assert seen == list(range(len(worker.buckets)))
    assert not worker.gradients.any()
    assert torch.equal(worker.buffers, statistics)
    assert not any(worker.evaluate(samples().part(0, 0)))


def test_dropout_depends_on_seed_rank_and_step_alone() -> None:
    spec = MlpSpec(hidden=(64,), dropout=0.5)

    def drawn(rank: int, step: int) -> float:
        return replica(spec, rank=rank).forward_backward(samples(), step=step).loss_sum

    worker = replica(spec)
    sequence = [worker.forward_backward(samples(), step=step).loss_sum for step in range(3)]
    torch.manual_seed(99)
    assert drawn(0, 2) == sequence[2]
    assert len({*sequence, drawn(1, 0), drawn(1, 1)}) == 5


def test_draw_seeds_do_not_collide() -> None:
    seeds = {draw_seed(s, r, t) for s in range(10) for r in range(10) for t in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_evaluation_changes_nothing_and_training_goes_on() -> None:
    worker = replica(RESNET)
    worker.forward_backward(samples(), step=0)
    before = {key: value.clone() for key, value in worker.state().items()}
    first = worker.evaluate(samples())
    assert first == worker.evaluate(samples())
    assert all(torch.equal(before[key], value) for key, value in worker.state().items())
    halves = [worker.evaluate(samples().part(a, b)) for a, b in ((0, 5), (5, 12))]
    assert sum(h.loss_sum for h in halves) == pytest.approx(first.loss_sum, rel=1e-5)
    worker.forward_backward(samples(), step=1)
    assert not torch.equal(worker.buffers, before["buffers"])


@pytest.mark.parametrize("optimizer", [SgdSpec(momentum=0.9), AdamSpec(l2=1e-3)])
def test_resumed_run_is_bit_identical(optimizer: OptimizerSpec) -> None:
    def advance(worker: Replica, steps: range) -> None:
        for step in steps:
            worker.forward_backward(samples(), step=step)
            worker.apply(0.01)

    straight = replica(RESNET, optimizer)
    advance(straight, range(2))
    saved = {key: value.clone() for key, value in straight.state().items()}
    advance(straight, range(2, 4))
    resumed = replica(RESNET, optimizer)
    resumed.load_state(saved)
    advance(resumed, range(2, 4))
    assert straight.state().keys() == resumed.state().keys()
    for key, value in straight.state().items():
        assert torch.equal(value, resumed.state()[key]), key
    assert int(resumed.module.get_buffer("norm.num_batches_tracked")) == 4


def test_state_of_another_model_is_refused_untouched() -> None:
    worker = replica()
    before = worker.parameters.clone()
    with pytest.raises(EngineError, match=r"'buffer/blocks.*resume with the model"):
        worker.load_state(replica(RESNET).state())
    with pytest.raises(EngineError, match="'optimizer/exp_avg'"):
        worker.load_state(replica(CNN, AdamSpec()).state())
    assert torch.equal(worker.parameters, before)


def test_frozen_parameters_travel_with_the_state() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 10))
    module[1].requires_grad_(False)
    worker = Replica(module, loss=LossSpec(), optimizer=SgdSpec())
    worker.load_state({**worker.state(), "frozen/1.weight": torch.full((4, 64), 2.0)})
    assert module[1].weight.eq(2.0).all()


def test_a_loss_that_is_not_finite_names_step_and_remedy() -> None:
    worker = replica(rank=3)
    worker.parameters.fill_(float("nan"))
    with pytest.raises(EngineError, match=r"nan in step 41 on rank 3; lower optimizer\.lr") as e:
        worker.forward_backward(samples(), step=41)
    assert e.value.facts == {"step": 41, "rank": 3}


def test_inputs_are_not_copied_and_read_only_ones_are_safe() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 10)
            self.address = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.address = inputs.data_ptr()
            assert inputs.is_contiguous(memory_format=torch.channels_last)
            logits: torch.Tensor = self.head(inputs.add_(1).flatten(1))
            return logits

    module = Keeping()
    worker = Replica(module, loss=LossSpec(), optimizer=None)
    batch = samples()
    worker.forward_backward(batch, step=0)
    assert module.address == batch.inputs.ctypes.data
    batch.inputs.flags.writeable = False
    before = batch.inputs.copy()
    worker.forward_backward(batch, step=1)
    assert np.array_equal(before, batch.inputs)


def test_batches_that_do_not_fit_are_refused() -> None:
    batch = samples()
    double = batch.inputs.astype(np.float64)
    with pytest.raises(EngineError, match="contiguous float32 or int64, not float64"):
        replica().evaluate(Samples(double, batch.targets, 12))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="12 inputs came with 11 targets"):
        replica().evaluate(Samples(batch.inputs, batch.targets[1:], 12))
    with pytest.raises(EngineError, match=r"failed on inputs of shape \(12, 1, 4, 16\)"):
        replica().evaluate(Samples(batch.inputs.reshape(12, 4, 16, 1), batch.targets, 12))


def test_without_an_optimiser_apply_is_refused() -> None:
    worker = replica(CNN, None)
    worker.forward_backward(samples(), step=0)
    assert set(worker.state()) == {"parameters", "buffers"}
    with pytest.raises(EngineError, match="no optimiser"):
        worker.apply(0.1)


def test_bf16_keeps_everything_outside_the_passes_in_float32() -> None:
    exact, rounded = replica(), replica(precision="bf16")
    a = exact.forward_backward(samples(), step=0).loss_sum
    b = rounded.forward_backward(samples(), step=0).loss_sum
    assert a == pytest.approx(b, rel=0.02)
    assert a != b
    assert rounded.parameters.dtype == rounded.gradients.dtype == torch.float32
    cosine = torch.cosine_similarity(exact.gradients, rounded.gradients, dim=0)
    assert cosine.item() > 0.99
