"""What servers are told of a script: its rows, weights, schedule and options."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.errors import SpecError
from phalanx.program.gradients import ScriptGradients
from phalanx.program.served_model import (
    ServedWeights,
    UpdateSchedule,
    check_served,
    check_switched,
    make_factory,
)
from phalanx.program.session import Declared, ScriptSession
from phalanx.program.source import open_source
from phalanx.program.standalone import StandaloneDriver
from phalanx.program.tickets import (
    ScriptTicketLoader,
    TicketBatch,
    counted_samples,
)
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.program import complete_job
from phalanx.wire.push_options import PushOptions, decode_options
from phalanx.wire.tickets import TicketPlan


def rows(count: int, batch: int, **settings: object) -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.arange(count)), batch, **settings)  # type: ignore[arg-type]


def declare(loader: object, **settings: object) -> Declared:
    session = ScriptSession(StandaloneDriver())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count, steps = settings.pop("count", None), settings.pop("steps", None)
    session.setup(model, optimizer, **settings)  # type: ignore[arg-type]
    session.data(loader, count=count, steps=steps)  # type: ignore[arg-type]
    return session.declared


def tickets_of(declared: Declared, *, workers: int, in_rounds: bool = True) -> list[TicketBatch]:
    """All tickets of the first epoch, in a mixed order."""
    accumulate, source = declared.accumulate, declared.source
    batch = source.batch_size * accumulate
    job = job_from_mapping({"program": {"script": "train.py"}, "workers": workers})
    job = complete_job(job, epochs=1, global_batch=batch)
    plan = TicketPlan.of(
        counted_samples(source),
        global_batch=batch,
        num_parts=workers,
        portions=None,
    )
    loader = ScriptTicketLoader(
        source, plan, job, accumulate=accumulate, seed=3, in_rounds=in_rounds
    )
    numbers = list(range(1, plan.per_epoch + 1))
    for ticket in numbers[1::2] + numbers[::2]:
        loader.prepare(ticket)
    return [loader.next() for _ in numbers]


def used(batches: list[TicketBatch]) -> list[int]:
    micro = chain.from_iterable(batch.micro for batch in batches)
    return sorted(chain.from_iterable(one.payload[0].tolist()[: one.num_rows] for one in micro))  # type: ignore[index]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_tickets_hold_every_sample_once(workers: int, accumulate: int) -> None:
    declared = declare(rows(47, 6, shuffle=True), accumulate=accumulate)
    batches = tickets_of(declared, workers=workers)
    assert used(batches) == list(range(47))
    assert sum(map(len, batches)) == 47


def test_a_stream_is_read_again_for_a_ticket_that_lies_behind() -> None:
    def make() -> Iterator[tuple[torch.Tensor]]:
        for start in range(0, 40, 8):
            yield (torch.arange(start, start + 8) + int(torch.randint(0, 5, ())) * 0,)

    declared = declare(make, steps=5)
    assert used(tickets_of(declared, workers=2)) == list(range(40))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_irregular_batches_count_as_usual_ones(accumulate: int) -> None:
    source = open_source(rows(23, 5), steps=7, accumulate=accumulate)
    assert not source.is_even
    assert counted_samples(source) == 7 * accumulate * 5
    declared = declare(rows(23, 5), steps=7, accumulate=accumulate)
    assert sum(map(len, tickets_of(declared, workers=2))) == 7 * accumulate * 5
    with pytest.raises(SpecError, match="drop_last"):
        check_switched(declared)


@pytest.mark.parametrize("loss", ["mean", "sum"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_of_a_round_add_up_to_one_batch(loss: str, accumulate: int) -> None:
    declared = declare(rows(23, 6), accumulate=accumulate, loss=loss)
    weights = ServedWeights(declared, in_rounds=True)
    by_step: dict[int, list[TicketBatch]] = {}
    for batch in tickets_of(declared, workers=3):
        by_step.setdefault(batch.step, []).append(batch)
    for batches in by_step.values():
        pushed = math.fsum(weights.total(one) / one.global_count for one in batches)
        assert pushed == pytest.approx(1.0)
        for index in range(len(batches[0].micro)):
            roots = [weights.weights(one)(index) for one in batches]
            whole = sum(one.micro[index].num_rows > 0 for one in batches) if loss == "sum" else 1
            assert math.fsum(roots) == pytest.approx(whole)


def test_counted_losses_weigh_by_their_counts() -> None:
    declared = declare(rows(12, 6), count=lambda batch: int(batch[0].sum()))
    weights = ServedWeights(declared, in_rounds=True)
    first, second = (b for b in tickets_of(declared, workers=2) if b.step == 1)
    ratio = weights.total(first) / weights.total(second)
    assert ratio == pytest.approx(weights.weights(first)(0) / weights.weights(second)(0))
    assert max(ratio, 1 / ratio) == pytest.approx(30 / 21)


def test_outside_of_rounds_a_sample_of_the_last_batch_weighs_as_any_other() -> None:
    declared = declare(rows(20, 8))
    weights = ServedWeights(declared, in_rounds=False)
    for batch in tickets_of(declared, workers=2, in_rounds=False):
        expected = batch.micro[0].num_rows / 8
        assert weights.weights(batch)(0) == pytest.approx(expected)
        assert weights.total(batch) / batch.global_count == pytest.approx(expected)


def scheduled() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_schedule_per_update_catches_up_with_updates_of_others() -> None:
    optimizer, scheduler = scheduled()
    schedule = UpdateSchedule(scheduler)
    rates = []
    # The worker makes update 1 twice (two parts of it), and 3 and 4 not at all.
    for update in (0, 1, 1, 2, 5, 6):
        schedule.begin(0, update)
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert [math.log2(1 / rate) for rate in rates] == [0, 1, 2, 3, 5, 6]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_schedule_per_epoch_is_left_alone() -> None:
    optimizer, scheduler = scheduled()
    schedule = UpdateSchedule(scheduler)
    for epoch in range(2):
        for update in (0, 3, 7):
            schedule.begin(epoch, 10 * epoch + update)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_options_of_an_update_hold_rates_and_no_parameters() -> None:
    groups: list[dict[str, Any]] = [
        {"params": [nn.Parameter(torch.ones(()))], "lr": torch.tensor(0.5)},
        {"params": [nn.Parameter(torch.ones(3))], "betas": (0.8, 0.9)},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.25)
    found = decode_options(PushOptions.of(optimizer.param_groups, 2.0).encode())
    assert (found.rate, found.clip_norm) == (0.5, 2.0)
    assert "params" not in found.groups[0]
    assert found.groups[1]["betas"] == (0.8, 0.9)


def test_gradients_that_the_script_changes_are_noticed() -> None:
    model = nn.Linear(3, 2)
    size = sum(p.numel() for p in model.parameters())
    flat = ScriptGradients(
        dict(model.named_parameters()),
        parameters=torch.zeros(size),
        gradients=torch.zeros(size),
        bucket_bytes=None,
    )
    model(torch.ones(1, 3)).sum().backward()
    version = flat.gradients._version
    assert not flat.is_changed(version)
    weight = model.weight
    assert weight.grad is not None
    weight.grad = weight.grad.clamp(-0.5, 0.5)
    assert flat.is_changed(version)
    flat.bring_all_home()
    assert float(flat.gradients.max()) == 1.0, "the bias is as it was"
    assert float(flat.gradients.min()) == 0.5
    model.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    version = flat.gradients._version
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    assert flat.is_changed(version)


def test_counts_of_several_batches_are_refused() -> None:
    declared = declare(rows(12, 6), count=len, accumulate=2)
    with pytest.raises(SpecError, match="needs the counts"):
        check_served(declared)


@pytest.mark.parametrize(
    ("name", "is_cut"), [("Adadelta", True), ("AdamW", True), ("SGD", True), ("Adafactor", False)]
)
def test_optimisers_are_cut_where_that_is_exact(name: str, is_cut: bool) -> None:
    session = ScriptSession(StandaloneDriver())
    model = nn.Linear(8, 8)
    session.setup(model, getattr(torch.optim, name)(model.parameters(), lr=0.1))
    (setup,) = session.declared.setups
    named = dict(model.named_parameters())
    flat = ScriptGradients(
        named, parameters=torch.zeros(72), gradients=torch.zeros(72), bucket_bytes=None
    )
    assert (make_factory([setup], [flat.layout]).cut_at is None) == is_cut
    setup.clip_norm = 1.0
    assert make_factory([setup], [flat.layout]).cut_at == ()
