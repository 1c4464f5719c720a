"""`backend: ddp` against the native engine: the same job gives the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phalanx import api
from phalanx.backends.ddp.learner import DdpModel
from phalanx.backends.ddp.step import DdpSteps
from phalanx.comm.solo import SoloCollective
from phalanx.data.pipeline import train_batches
from phalanx.errors import EngineError, SpecError
from phalanx.model.catalogue import build_model
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from support.ranks import run_ranks
from support.toy import toy_data, toy_job, toy_replica, train_epochs

OPTIMIZERS = [
    {"name": "sgd", "lr": 0.05},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"name": "sgd", "lr": 0.05, "l2": 1e-3, "clip_norm": 0.5},
    {"name": "adagrad", "lr": 0.01},
    {"name": "adadelta", "lr": 1.0, "rho": 0.9},
    {"name": "adam", "lr": 0.001, "betas": [0.8, 0.99]},
    {"name": "adamw", "lr": 0.001, "weight_decay": 0.05},
]
DIGITS = {"name": "digits", "limit": 600, "prefetch": 0}
# A last batch of one: 540 samples are trained on, and the second worker has none of the last.
UNEVEN = {"global": 49, "shares": [3, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def learner_of(job: JobSpec, folder: Path) -> DdpModel:
    data = toy_data(job, folder)
    model = build_model(
        job.model, input_shape=data.input_shape, num_classes=data.num_classes, seed=job.seed
    )
    return DdpModel(model, job=job, precision="fp32")


def train_plainly(job: JobSpec, folder: Path, learner: DdpModel, *, first: int = 0) -> None:
    """One epoch of plain steps in this process, from a given step on."""
    data = toy_data(job, folder)
    steps = DdpSteps(learner, SoloCollective(), job=job, input_shape=data.input_shape)
    with train_batches(
        data,
        spec=job.data,
        seed=job.seed,
        epoch=0,
        global_batch=job.global_batch,
        rank=0,
        num_workers=1,
        start_step=first,
    ) as batches:
        for number, batch in enumerate(batches, start=first):
            steps.step(batch, lr=job.optimizer.lr, step_index=number)


@pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=lambda spec: "-".join(map(str, spec.values()))
)
def test_every_update_rule_is_the_native_one(folder: Path, optimizer: dict[str, object]) -> None:
    job = toy_job(workers=1, strategy="single", optimizer=optimizer)
    native = run_ranks(1, lambda group: train_epochs(job, toy_data(job, folder), group))[0]
    learner = learner_of(job, folder)
    train_plainly(job, folder, learner)
    torch.testing.assert_close(learner.parameters, native, atol=1e-5, rtol=0)


def test_the_regulariser_is_reported_alike(folder: Path) -> None:
    job = toy_job(workers=1, strategy="single", optimizer={"name": "sgd", "l2": 1e-3})
    replica = toy_replica(job, toy_data(job, folder), rank=0)
    assert learner_of(job, folder).regularisation() == pytest.approx(replica.regularisation())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adadelta"])
def test_a_state_taken_up_goes_on_as_if_nothing_had_happened(folder: Path, optimizer: str) -> None:
    rule = {"name": optimizer} | ({"momentum": 0.9} if optimizer == "sgd" else {})
    # Convolutions, because their memory has another layout than a file's.
    model = {"name": "cnn", "filters": 4, "dense": 8}
    job = toy_job(workers=1, strategy="single", optimizer=rule, model=model)
    whole, second = learner_of(job, folder), learner_of(job, folder)
    data = toy_data(job, folder)
    steps = DdpSteps(whole, SoloCollective(), job=job, input_shape=data.input_shape)
    with train_batches(
        data, spec=job.data, seed=1, epoch=0, global_batch=32, rank=0, num_workers=1
    ) as batches:
        for number, batch in enumerate(batches):
            if number == 5:
                second.load_state({name: t.clone() for name, t in whole.state().items()})
            steps.step(batch, lr=0.01, step_index=number)
    assert not torch.equal(second.parameters, whole.parameters)
    with pytest.raises(EngineError, match="backend ddp"):
        second.load_state({"parameters": whole.parameters})
    other = toy_job(workers=1, strategy="single", optimizer=rule | {"lr": 0.01}, model=model)
    train_plainly(other, folder, second, first=5)
    torch.testing.assert_close(second.parameters, whole.parameters, atol=0, rtol=0)


def trained(folder: Path, runs: Path, **fields: object) -> tuple[Summary, dict[str, torch.Tensor]]:
    """A real run with processes: its summary and its last weights and statistics by name."""
    settings = {"data": DIGITS, "workers": 2, "threads": 1} | fields
    summary = api.train(settings, runs=runs, data_root=folder, cache_root=folder)
    saved = max(Path(summary.run_dir, "checkpoints").glob("samples-*.safetensors"))
    state = {name.removeprefix("replica."): tensor for name, tensor in load_file(saved).items()}
    if fields.get("backend") == "ddp":
        weights = {n.removeprefix("model/"): t for n, t in state.items() if n.startswith("model/")}
        return summary, {n: t for n, t in weights.items() if t.is_floating_point()}
    job = job_from_mapping(settings)
    replica = toy_replica(job, toy_data(job, folder), rank=0)
    replica.load_state({n: t for n, t in state.items() if n in replica.state()})
    return summary, {n: t for n, t in replica.module.state_dict().items() if t.is_floating_point()}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "model": {"name": "resnet", "n": 1},
            "batch": UNEVEN,
            "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9, "l2": 1e-4},
        },
        {
            "model": "mnist-cnn",
            "batch": {"per_worker": 16},
            "optimizer": {"name": "adam"},
            "schedule": {"name": "cosine", "warmup": 0.2},
        },
    ],
    ids=["resnet, uneven", "mnist-cnn with dropout"],
)
def test_two_workers_end_where_native_ones_do(
    folder: Path, tmp_path: Path, fields: dict[str, object]
) -> None:
    ours, expected = trained(folder, tmp_path, **fields)
    plain, found = trained(folder, tmp_path, backend="ddp", **fields)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5, msg=name)
    assert (plain.updates, plain.samples) == (ours.updates, ours.samples)
    assert plain.parameters == ours.parameters
    assert plain.train_loss == pytest.approx(ours.train_loss, abs=1e-5)
    assert plain.test_loss == pytest.approx(ours.test_loss, abs=1e-5)
    assert plain.test_accuracy == ours.test_accuracy
    assert plain.regularisation == pytest.approx(ours.regularisation, rel=1e-5)
    # Traffic by the same formula, but for the buckets' rounding and the statistics.
    assert plain.bytes_sent == pytest.approx(ours.bytes_sent, rel=0.01)


@pytest.mark.full
@pytest.mark.parametrize(("compression", "share"), [("bf16", 0.6), ("powersgd", 0.2)])
def test_torchs_own_hooks_compress_and_learn(
    folder: Path, tmp_path: Path, compression: str, share: float
) -> None:
    fields: dict[str, object] = {"model": "mnist-cnn", "optimizer": {"name": "adam"}, "epochs": 4}
    whole, _ = trained(folder, tmp_path, backend="ddp", **fields)
    strategy = {"name": "allreduce", "compression": compression}
    found, _ = trained(folder, tmp_path, backend="ddp", strategy=strategy, **fields)
    assert found.train_loss is not None
    assert whole.train_loss is not None
    assert found.train_loss < 2 * whole.train_loss
    assert found.bytes_sent < share * whole.bytes_sent


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("local_sgd", "backend ddp has no strategy 'local_sgd'"),
        ("parameter_server", "backend ddp has no strategy 'parameter_server'"),
        (
            {"name": "allreduce", "bucket_bytes": 1000},
            "backend ddp has no strategy.bucket_bytes, but it is 1000",
        ),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_in_one_sentence(strategy: object, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        job_from_mapping({"backend": "ddp", "workers": 2, "strategy": strategy})
