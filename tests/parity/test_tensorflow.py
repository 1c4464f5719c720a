"""The TensorFlow backend against the native one, part by part: input, loss, update rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from data_files import write_cifar
from phalanx.data.pipeline import Dataset, eval_batches, open_dataset, train_batches
from phalanx.engine.layout import Range
from phalanx.engine.loss import Loss
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.loss import LossSpec

tf = pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")

from phalanx.backends.tensorflow.input_pipeline import (  # noqa: E402  # only where there is TensorFlow
    batches,
    eval_plan,
    hold,
    make_transform,
    may_be_empty,
    read_stored,
    train_plan,
)
from phalanx.backends.tensorflow.loss import sum_and_correct  # noqa: E402
from phalanx.backends.tensorflow.rules import clip, make_rule  # noqa: E402

SHAPE = (6, 4)
NUM_STEPS = 6


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Small colour photographs, and where they are decoded."""
    root = tmp_path_factory.mktemp("data")
    write_cifar(root / "cifar10", per_batch=12, as_tar=False)
    return root, tmp_path_factory.mktemp("cache")


def make(images: tuple[Path, Path], **settings: Any) -> tuple[JobSpec, Dataset]:
    data = {"name": "cifar10"} | settings.pop("data", {})
    job = job_from_mapping(
        {"backend": "tensorflow", "batch": {"global": 10}, "workers": 2, "data": data} | settings
    )
    return job, open_dataset(job.data, data_root=images[0], cache_root=images[1])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data": {"augment": ["flip", "pad-crop"]}},
        {"data": {"augment": ["flip"], "normalize": "unit", "prefetch": 0}},
        {"data": {"augment": ["pad-crop"], "shard": "off", "normalize": "none"}},
        {"data": {"shard": "file", "shuffle": False}},
        {"batch": {"global": 9, "shares": [3.0, 1.0]}},
    ],
)
def test_tf_data_gives_the_batches_of_the_native_pipeline(
    images: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    job, dataset = make(images, **settings)
    stored = hold(dataset.train)
    transform = make_transform(dataset.train, job.data.augment)
    for epoch in range(2):
        for rank in range(2):
            plan = train_plan(dataset, job, epoch=epoch, rank=rank)
            found = list(batches(stored, plan, transform, prefetch=job.data.prefetch))
            with train_batches(
                dataset,
                spec=job.data,
                seed=job.seed,
                epoch=epoch,
                global_batch=job.global_batch,
                rank=rank,
                num_workers=2,
                shares=job.batch.shares,
            ) as stream:
                wanted = [one.copy() for one in stream]
            assert len(found) == len(wanted) > 1
            for (inputs, targets, count), native in zip(found, wanted, strict=True):
                np.testing.assert_allclose(inputs.numpy(), native.inputs, rtol=1e-6, atol=1e-6)
                np.testing.assert_array_equal(targets.numpy(), native.targets)
                assert int(count) == native.global_count


def test_an_epoch_can_be_taken_up_in_the_middle(images: tuple[Path, Path]) -> None:
    job, dataset = make(images)
    whole = train_plan(dataset, job, epoch=1, rank=1)
    rest = train_plan(dataset, job, epoch=1, rank=1, start_sample=20)
    assert len(rest) == len(whole) - 2
    np.testing.assert_array_equal(rest.rows, whole.rows[whole.bounds[2] :])


def test_an_evaluation_sees_every_sample_once(images: tuple[Path, Path]) -> None:
    _, dataset = make(images)
    part = dataset.test
    plans = [eval_plan(part, rank=rank, num_workers=2, worker_batch=7) for rank in range(2)]
    rows = np.concatenate([plan.rows for plan in plans])
    np.testing.assert_array_equal(rows, part.rows)
    with eval_batches(part, rank=0, num_workers=2, worker_batch=7) as stream:
        wanted = [one.copy() for one in stream]
    found = list(batches(hold(part), plans[0], make_transform(part, ()), prefetch=2))
    for (inputs, targets, _), native in zip(found, wanted, strict=True):
        np.testing.assert_allclose(inputs.numpy(), native.inputs, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(targets.numpy(), native.targets)


def test_empty_parts_are_foreseen(images: tuple[Path, Path]) -> None:
    job, dataset = make(images)
    assert not may_be_empty(dataset, job)
    # All but one sample of the epoch fill whole batches: the last has none for the second worker.
    size = dataset.train.num_samples - 1
    assert may_be_empty(dataset, make(images, batch={"global": size})[0])


def test_tensorflow_reads_the_decoded_arrays_itself(images: tuple[Path, Path]) -> None:
    _, dataset = make(images)
    part, folder = dataset.train, dataset.cache_folder
    inputs, targets = read_stored(folder, folder, part)
    np.testing.assert_array_equal(inputs.numpy()[part.rows], part.inputs[part.rows])
    np.testing.assert_array_equal(targets.numpy()[part.rows], part.targets[part.rows])


@pytest.mark.parametrize(
    ("spec", "targets"),
    [
        (LossSpec(), np.array([0, 3, 1, 1, 2])),
        (LossSpec(label_smoothing=0.1), np.array([0, 3, 1, 1, 2])),
        (LossSpec(name="mse"), np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)),
    ],
)
def test_losses_are_equal(spec: LossSpec, targets: npt.NDArray[Any]) -> None:
    outputs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    loss, correct = sum_and_correct(spec, tf.constant(outputs), tf.constant(targets))
    ours = Loss(spec).compute(torch.from_numpy(outputs), torch.from_numpy(targets))
    assert float(loss) == pytest.approx(float(ours.total), rel=1e-6)
    assert int(correct) == int(ours.correct)
    assert ours.weight == len(targets)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "sgd", "lr": 0.1},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"name": "sgd", "lr": 0.1, "l2": 0.02, "clip_norm": 0.5},
        {"name": "adagrad", "weight_decay": 0.01},
        {"name": "adadelta"},
        {"name": "adam", "weight_decay": 0.01},
        {"name": "adamw", "weight_decay": 0.1},
    ],
)
def test_update_rules_move_parameters_alike(settings: dict[str, Any]) -> None:
    """Over several steps and a drop of the rate, which is where rules of other origin part."""
    spec = job_from_mapping({"optimizer": settings}).optimizer
    generator = np.random.default_rng(7)
    start = generator.normal(size=SHAPE).astype(np.float32)
    native = torch.from_numpy(start.flatten().copy())
    optimizer = FlatOptimizer(spec, native, kernels=[Range(0, native.numel())])
    variable = tf.Variable(start)
    slots = [tf.Variable(tf.zeros(SHAPE)) for _ in spec.slots]
    rule = make_rule(spec)
    for number in range(1, NUM_STEPS + 1):
        lr = spec.lr if number < NUM_STEPS / 2 else spec.lr / 10
        gradient = generator.normal(size=SHAPE).astype(np.float32)
        optimizer.step(torch.from_numpy(gradient.flatten().copy()), lr)
        [clipped] = clip(spec, [tf.constant(gradient)], [variable])
        rule(variable, clipped, tf.constant(lr, tf.float32), tf.constant(number), *slots)
    np.testing.assert_allclose(variable.numpy().flatten(), native.numpy(), rtol=2e-5, atol=1e-6)
    for name, slot in zip(spec.slots, slots, strict=True):
        wanted = optimizer.state()[name].numpy()
        np.testing.assert_allclose(slot.numpy().flatten(), wanted, rtol=2e-5, atol=1e-6)
