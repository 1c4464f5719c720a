"""A split network against the same network in one process, dropout and batch norm included."""

from __future__ import annotations

import pytest
import torch

from phalanx.split.graph import Places, one_each
from support.branched import Trained, batches, split_job, train_alone, train_split

ADAM = {"name": "adam", "lr": 0.003}
# Parts: image.conv1, image.conv2, image.dense, wave.conv, wave.dense, vector, trunk.dense, classes.
PLACEMENTS = {
    "branches": (3, one_each([0, 0, 0, 1, 1, 2, 0, 0])),
    "trunk alone": (4, one_each([0, 0, 0, 1, 1, 2, 3, 3])),
    "chain in two": (2, one_each([0, 0, 0, 0, 1, 1, 1, 1])),
    "there and back": (2, one_each([0, 1, 0, 1, 0, 1, 0, 1])),
    "round robin": (3, one_each([n % 3 for n in range(8)])),
    "every part moves": (5, one_each([4, 3, 2, 1, 0, 4, 2, 1])),
    "loss not at the chief": (5, one_each([0, 1, 2, 3, 4, 0, 1, 2])),
    "an idle worker": (4, one_each([1, 1, 1, 3, 3, 3, 1, 1])),
    "all on one": (2, one_each([1] * 8)),
}


def assert_equal(found: Trained, expected: Trained) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.evaluation == pytest.approx(expected.evaluation, rel=1e-5)
    assert found.state.keys() == expected.state.keys()
    for key, value in expected.state.items():
        torch.testing.assert_close(found.state[key], value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_split_run_equals_the_single_process(name: str) -> None:
    workers, places = PLACEMENTS[name]
    job = split_job(workers=workers, optimizer=ADAM)
    data = batches(25, 16, last=5)
    expected = train_alone(job, data)
    assert expected.losses[-2] < expected.losses[0]
    assert_equal(train_split(job, data, places), expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.05, "momentum": 0.9, "l2": 1e-3, "clip_norm": 0.5},
        {"name": "sgd", "lr": 0.1},
        {"name": "adamw", "lr": 0.003, "weight_decay": 0.05, "clip_norm": 0.1},
        {"name": "adadelta", "lr": 1.0},
        {"name": "adagrad", "lr": 0.05},
    ],
    ids=lambda one: one["name"],
)
def test_update_rules_and_clipping_see_the_whole_gradient(optimizer: dict[str, object]) -> None:
    job = split_job(workers=3, optimizer=optimizer)
    data = batches(15, 16)
    places = PLACEMENTS["branches"][1]
    assert_equal(train_split(job, data, places), train_alone(job, data))


PLAIN = {"dropout": 0.0, "batch_norm": False}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [2, 3, 8, 40])
def test_micro_batches_add_up_to_the_batch(schedule: str, micro_batches: int) -> None:
    strategy = {"schedule": schedule, "micro_batches": micro_batches}
    job = split_job(workers=4, optimizer=ADAM, strategy=strategy)
    data = batches(12, 16, last=3)
    for name in ("trunk alone", "there and back"):
        found = train_split(job, data, PLACEMENTS[name][1], PLAIN)
        assert_equal(found, train_alone(job, data, PLAIN))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_micro_batches_draw_alike_wherever_parts_are(schedule: str) -> None:
    strategy = {"schedule": schedule, "micro_batches": 4}
    data = batches(12, 16)
    alone = train_split(
        split_job(workers=1, optimizer=ADAM, strategy=strategy), data, one_each([0] * 8)
    )
    job = split_job(workers=3, optimizer=ADAM, strategy=strategy)
    assert_equal(train_split(job, data, PLACEMENTS["round robin"][1]), alone)


REPLICATED: dict[str, tuple[int, Places]] = {
    "heavy branch twice": (3, ((0, 1), (0, 1), (0, 1), (2,), (2,), (2,), (2,), (2,))),
    "heavy branch three times": (
        4,
        ((0, 1, 2), (0, 1, 2), (0, 1, 2), (3,), (3,), (0,), (3,), (3,)),
    ),
    "trunk too": (3, ((0,), (1,), (0, 1), (2,), (2, 0), (1,), (0, 1, 2), (1, 2))),
    "everything": (2, ((0, 1),) * 8),
}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", REPLICATED)
def test_replicated_parts_share_out_the_batch(name: str, micro_batches: int) -> None:
    workers, places = REPLICATED[name]
    strategy = {"micro_batches": micro_batches}
    job = split_job(
        workers=workers, optimizer={**ADAM, "clip_norm": 1.0, "l2": 1e-4}, strategy=strategy
    )
    data = batches(12, 16, last=1)
    assert_equal(train_split(job, data, places, PLAIN), train_alone(job, data, PLAIN))


def test_bf16_on_the_wire_halves_what_is_sent_and_still_learns() -> None:
    data = batches(25, 16)
    places = PLACEMENTS["trunk alone"][1]
    wide = train_split(split_job(workers=4, optimizer=ADAM), data, places)
    narrow = train_split(
        split_job(workers=4, optimizer=ADAM, strategy={"wire": "bf16"}), data, places
    )
    for one, other in zip(narrow.traffic, wide.traffic, strict=True):
        assert {key: 2 * value for key, value in one.items()} == other
    assert narrow.losses == pytest.approx(wide.losses, rel=0.05)
    assert narrow.losses != wide.losses


def test_a_run_goes_on_under_another_placement() -> None:
    data = batches(20, 16)
    job = split_job(workers=3, optimizer=ADAM)
    expected = train_alone(job, data)
    half = train_split(job, data[:10], PLACEMENTS["branches"][1])
    job = split_job(workers=5, optimizer=ADAM)
    places = PLACEMENTS["every part moves"][1]
    rest = train_split(job, data[10:], places, start=half.state, first_step=10)
    assert half.losses + rest.losses == pytest.approx(expected.losses, rel=1e-5)
