"""Optimisers, losses, metrics, augmentations, sources and backends of other packages in a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.data.augment import Augmenter
from phalanx.data.metrics import Predictions, compute_metrics
from phalanx.data.sources import open_source
from phalanx.engine.loss import Loss
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.errors import EngineError, SpecError
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.loss import LossSpec
from phalanx.spec.render import to_mapping
from support.plugins import PLUGINS

LION = {"name": "phalanx_extras:LION", "lr": 0.1}
RINGS = {"name": "phalanx_extras.rings:Rings", "args": {"rings": 4, "samples": 30}}
FOCAL = "phalanx_extras.losses:focal"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PLUGINS), *sys.path])


def test_a_job_of_outside_parts_goes_through_json_unchanged() -> None:
    job = load_job(PLUGINS / "job.yaml")
    assert job.python_path == (str(PLUGINS),)
    sent = json.loads(json.dumps(to_mapping(job)))
    assert job_from_mapping(sent) == job
    assert JobSpec.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_folders_of_a_job_file_are_seen_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "own_loss.py").write_text("def loss(outputs, targets):\n    return outputs[:, 0]\n")
    (tmp_path / "job.yaml").write_text("python_path: [.]\nloss: own_loss:loss\n")
    job = load_job(tmp_path / "job.yaml")
    assert job.python_path == (str(tmp_path),)
    total, _, _ = Loss(job.loss).compute(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    assert total.item() == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": LION, "backend": "ddp"},
            "optimizer 'phalanx_extras:LION' has no form for torch.optim, which backend ddp needs; "
            "set 'backend: native'",
        ),
        (
            {"optimizer": LION, "backend": "tensorflow"},
            "optimizer 'phalanx_extras:LION' has no form for backend tensorflow; "
            "set 'backend: native'",
        ),
        (
            {"loss": FOCAL, "backend": "tensorflow"},
            f"loss '{FOCAL}' has no form for backend tensorflow; set 'backend: native'",
        ),
        (
            {
                "data": {"name": "mnist", "augment": ["phalanx_extras.rings:jitter"]},
                "backend": "tensorflow",
            },
            "augmentation 'phalanx_extras.rings:jitter' has no form for backend tensorflow; "
            "set 'backend: native'",
        ),
        ({"optimizer": {**LION, "beta": 1}}, "unknown key 'beta' in optimizer"),
        ({"optimizer": "phalanx_extras:LIONS"}, "module 'phalanx_extras' has no 'LIONS'"),
        ({"optimizer": "phalanx_extras.rings:Rings"}, "is ABCMeta, not OptimizerKind"),
        ({"data": {"name": "mnist", "args": {"a": 1}}}, "data.args has no effect on 'mnist'"),
        (
            {"data": {"name": "phalanx_redshift:SPECTRA", "args": {"bins": 3}}},
            "data.args: bins must be a whole number of at least 16, not 3",
        ),
        ({"data": {**RINGS, "metrics": ["kapa"]}}, "did you mean 'kappa'?"),
        ({"backend": "nativ"}, "did you mean 'native'?"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        job_from_mapping(settings)
    assert message in str(refused.value)


def test_a_rule_of_another_package_moves_slices_as_it_moves_the_whole() -> None:
    spec = job_from_mapping({"optimizer": {**LION, "weight_decay": 0.1}}).optimizer
    whole, cut = torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64)
    one = FlatOptimizer(spec, whole)
    two = [FlatOptimizer(spec, cut[:16]), FlatOptimizer(spec, cut[16:])]
    for step in range(3):
        gradient = torch.sin(torch.arange(64.0) + step)
        one.step(gradient.clone(), 0.1)
        two[0].step(gradient[:16].clone(), 0.1)
        two[1].step(gradient[16:].clone(), 0.1)
    assert torch.equal(whole, cut)
    assert set(one.state()) == set(spec.slots) == {"exp_avg"}


def test_a_loss_returns_one_number_for_each_sample() -> None:
    loss = Loss(LossSpec(name=FOCAL, args={"gamma": 0.0}))
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    plain, right, _ = Loss(LossSpec()).compute(outputs, targets)
    own, own_right, _ = loss.compute(outputs, targets)
    assert own.item() == pytest.approx(plain.item(), rel=1e-5)
    assert own_right.item() == right.item()
    broken = Loss(LossSpec(name="torch:sub"))
    with pytest.raises(EngineError, match=r"returned \(5, 3\) for 5 samples"):
        broken.compute(outputs, outputs)


def test_a_metric_is_recorded_by_its_own_name() -> None:
    said = Predictions(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), num_classes=3)
    names = ("accuracy", "phalanx_extras.metrics:worst_class")
    assert compute_metrics(names, said) == {"accuracy": 0.75, "worst_class": 0.5}


def test_an_augmentation_draws_the_same_from_the_same_seed_epoch_and_samples() -> None:
    like = np.zeros((8, 2), dtype=np.float32)

    def changed(epoch: int) -> np.ndarray:
        augmenter = Augmenter(
            ["phalanx_extras.rings:jitter"], key=(1, epoch, 0), max_rows=8, like=like
        )
        augmenter.images[:] = 1.0
        return augmenter(np.arange(8))

    assert np.array_equal(changed(1), changed(1))
    assert not np.array_equal(changed(1), changed(2))
    assert not (changed(1) == 1.0).any()


def test_a_source_is_built_from_its_arguments(tmp_path: Path) -> None:
    source = open_source(DataSpec.model_validate(RINGS), data_root=tmp_path, cache_root=tmp_path)
    assert (source.name, source.num_classes) == ("rings", 4)
    assert sum(len(chunk) for chunk in source.chunks("train")) == 30
    wrong = DataSpec(name="phalanx_extras.rings:Rings", args={"colour": 1})
    with pytest.raises(SpecError, match="unexpected keyword argument 'colour'"):
        open_source(wrong, data_root=tmp_path, cache_root=tmp_path)
    with pytest.raises(SpecError, match=r"returned Fraction; it must return a phalanx Source"):
        list(
            open_source(
                DataSpec(name="fractions:Fraction"), data_root=tmp_path, cache_root=tmp_path
            ).chunks("train")
        )
