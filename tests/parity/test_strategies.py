"""Every strategy against the single-process reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.spec.topology import TOPOLOGIES
from support.plugins import PLUGINS
from support.ranks import over_mesh, run_ranks
from support.toy import toy_data, toy_job, toy_replica, train_epochs

OPTIMIZERS = [
    {"name": "sgd", "lr": 0.05},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"name": "sgd", "lr": 0.05, "l2": 1e-3, "clip_norm": 0.5},
    {"name": "adagrad", "lr": 0.01},
    {"name": "adadelta", "lr": 1.0},
    {"name": "adam", "lr": 0.001},
    {"name": "adamw", "lr": 0.001, "weight_decay": 0.05},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def reference(folder: Path, **fields: object) -> torch.Tensor:
    job = toy_job(**fields, workers=1, strategy="single")
    dataset = toy_data(job, folder)
    return run_ranks(1, lambda group: train_epochs(job, dataset, group))[0]


def trained(folder: Path, **fields: object) -> list[torch.Tensor]:
    job = toy_job(**fields)
    dataset = toy_data(job, folder)
    return run_ranks(job.workers, lambda group: train_epochs(job, dataset, group))


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=lambda spec: "-".join(map(str, spec.values()))
)
def test_allreduce_equals_single(folder: Path, optimizer: dict[str, object], workers: int) -> None:
    expected = reference(folder, optimizer=optimizer)
    replicas = trained(folder, optimizer=optimizer, workers=workers, strategy="allreduce")
    torch.testing.assert_close(replicas[0], expected, atol=1e-5, rtol=0)
    for replica in replicas[1:]:
        assert torch.equal(replica, replicas[0]), "replicas drifted apart"


@pytest.mark.parametrize(
    "batch",
    [
        {"global": 128},  # does not divide by five workers, and leaves a last batch of 66
        {"global": 7},  # leaves a last batch of two for five workers: three of them have none
        {"global": 40, "shares": [5, 1, 1, 2, 1]},
        {"per_worker": 9},
    ],
    ids=str,
)
def test_uneven_batches_give_the_exact_mean(folder: Path, batch: dict[str, object]) -> None:
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    single_batch = {"global": 45} if "per_worker" in batch else {"global": batch["global"]}
    expected = reference(folder, optimizer=optimizer, batch=single_batch)
    replicas = trained(folder, optimizer=optimizer, batch=batch, workers=5, strategy="allreduce")
    torch.testing.assert_close(replicas[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bucket_bytes", [1, 1000, 10_000_000])
def test_buckets_do_not_change_the_result(folder: Path, bucket_bytes: int) -> None:
    strategy = {"name": "allreduce", "bucket_bytes": bucket_bytes}
    plain = trained(folder, workers=2, strategy="allreduce")
    cut = trained(folder, workers=2, strategy=strategy)
    assert torch.equal(plain[0], cut[0])


def test_convolutions_too(folder: Path) -> None:
    model = {"name": "mnist-cnn", "dropout": False}
    expected = reference(folder, model=model)
    replicas = trained(folder, model=model, workers=3, strategy="allreduce")
    torch.testing.assert_close(replicas[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_sgd_every_step_equals_allreduce(folder: Path, momentum: float) -> None:
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": momentum}
    together = trained(folder, optimizer=optimizer, workers=3, strategy="allreduce")
    local = {"name": "local_sgd", "every": 1}
    alone = trained(folder, optimizer=optimizer, workers=3, strategy=local)
    torch.testing.assert_close(alone[0], together[0], atol=1e-5, rtol=0)


def test_local_sgd_ends_with_equal_replicas(folder: Path) -> None:
    replicas = trained(folder, workers=3, strategy={"name": "local_sgd", "every": 4})
    assert torch.equal(replicas[0], replicas[1])
    assert torch.equal(replicas[0], replicas[2])


def test_outer_step_of_one_is_plain_averaging(folder: Path) -> None:
    plain = trained(folder, workers=2, strategy={"name": "local_sgd", "every": 4})
    outer = {"name": "local_sgd", "every": 4, "outer": {"lr": 1.0, "momentum": 0.0}}
    stepped = trained(folder, workers=2, strategy=outer)
    torch.testing.assert_close(stepped[0], plain[0], atol=1e-6, rtol=0)


def test_outer_momentum_changes_the_way(folder: Path) -> None:
    plain = trained(folder, workers=2, strategy={"name": "local_sgd", "every": 4})
    outer = {"name": "local_sgd", "every": 4, "outer": {"lr": 0.7, "momentum": 0.9}}
    assert not torch.allclose(trained(folder, workers=2, strategy=outer)[0], plain[0], atol=1e-3)


@pytest.mark.parametrize("outer", [{}, {"outer": {"lr": 0.7, "momentum": 0.9}}], ids=str)
@pytest.mark.parametrize("compression", ["int8", {"name": "topk", "share": 1.0}], ids=str)
def test_compressed_changes_come_near_the_average_of_parameters(
    folder: Path, compression: object, outer: dict[str, object]
) -> None:
    strategy = {"name": "local_sgd", "every": 4, **outer}
    plain = trained(folder, workers=3, strategy=strategy)
    found = trained(folder, workers=3, strategy=strategy | {"compression": compression})
    for replica in found[1:]:
        assert torch.equal(replica, found[0]), "replicas drifted apart"
    assert not torch.equal(found[0], plain[0]), "nothing was rounded: compression is off"
    torch.testing.assert_close(found[0], plain[0], atol=2e-3, rtol=0)


def test_bf16_compression_stays_near_and_keeps_replicas_equal(folder: Path) -> None:
    strategy = {"name": "allreduce", "compression": "bf16"}
    replicas = trained(folder, workers=2, strategy=strategy)
    expected = reference(folder)
    assert torch.equal(replicas[0], replicas[1])
    assert not torch.equal(replicas[0], expected), "nothing was rounded: compression is off"
    torch.testing.assert_close(replicas[0], expected, atol=2e-3, rtol=0)


def test_low_rank_factors_keep_replicas_equal_and_learn_like_the_exact_sum(folder: Path) -> None:
    strategy = {"name": "allreduce", "compression": {"name": "powersgd", "rank": 1}}
    replicas = trained(folder, workers=3, strategy=strategy)
    assert torch.equal(replicas[0], replicas[1])
    assert torch.equal(replicas[0], replicas[2])
    expected = reference(folder)
    assert not torch.equal(replicas[0], expected), "nothing was left out: compression is off"


def test_factors_of_full_rank_are_the_exact_sum_bit_by_bit(folder: Path) -> None:
    strategy = {"name": "allreduce", "compression": {"name": "powersgd", "rank": 10_000}}
    plain = trained(folder, workers=2, strategy="allreduce")
    assert torch.equal(trained(folder, workers=2, strategy=strategy)[0], plain[0])


FACTORED = {"name": "torch.optim:Adafactor", "lr": 0.02}


def test_an_optimiser_of_torch_keeps_replicas_equal_to_single(folder: Path) -> None:
    expected = reference(folder, optimizer=FACTORED)
    replicas = trained(folder, optimizer=FACTORED, workers=3, strategy="allreduce")
    torch.testing.assert_close(replicas[0], expected, atol=1e-4, rtol=0)
    assert torch.equal(replicas[0], replicas[1])
    assert torch.equal(replicas[0], replicas[2])


def test_local_sgd_averages_state_that_an_optimiser_keeps_by_name(folder: Path) -> None:
    """Every worker ends with one state, so that any of them may write the checkpoint."""
    job = toy_job(optimizer=FACTORED, workers=2, strategy={"name": "local_sgd", "every": 3})
    dataset = toy_data(job, folder)

    def train(group: Collective) -> dict[str, torch.Tensor]:
        replica = toy_replica(job, dataset, rank=group.rank)
        train_epochs(job, dataset, group, replica=replica)
        assert replica.optimizer is not None
        return replica.optimizer.state()

    one, other = run_ranks(2, train)
    assert any(key.endswith("row_var") for key in one)
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


# A gradient that is long enough not to be sent to all at once.
WIDE = {"name": "mlp", "hidden": [160]}


@pytest.mark.parametrize(
    ("strategy", "topology"),
    [
        *(("allreduce", name) for name in (*TOPOLOGIES.built_in, "auto")),
        ("allreduce", "phalanx_extras.topology:chain"),
        ("local_sgd", "tree"),
        ("local_sgd", "auto"),
    ],
)
def test_every_topology_equals_single(
    folder: Path, strategy: str, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PLUGINS)
    fields: dict[str, object] = {"model": WIDE, "optimizer": {"name": "sgd", "lr": 0.05}}
    settings: dict[str, object] = {"name": strategy, "topology": topology}
    every = {"every": 1} if strategy == "local_sgd" else {}
    job = toy_job(**fields, workers=5, strategy=settings | every)
    dataset = toy_data(job, folder)
    replicas = run_ranks(5, lambda group: train_epochs(job, dataset, group), over_mesh)
    torch.testing.assert_close(replicas[0], reference(folder, **fields), atol=1e-5, rtol=0)
    assert all(torch.equal(replica, replicas[0]) for replica in replicas[1:])


@pytest.mark.parametrize("compression", ["bf16", "int8", "powersgd", "topk"])
def test_compressed_replicas_stay_equal_along_a_tree(folder: Path, compression: str) -> None:
    strategy = {"name": "allreduce", "topology": "tree", "compression": compression}
    job = toy_job(model=WIDE, optimizer={"name": "sgd", "lr": 0.05}, workers=3, strategy=strategy)
    dataset = toy_data(job, folder)
    replicas = run_ranks(3, lambda group: train_epochs(job, dataset, group), over_mesh)
    assert all(torch.equal(replica, replicas[0]) for replica in replicas[1:])
    assert bool(torch.isfinite(replicas[0]).all())
