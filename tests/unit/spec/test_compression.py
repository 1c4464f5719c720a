"""The settings of compressions: short forms, what they send, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.spec.compression import (
    COMPRESSIONS,
    AutoCompressionSpec,
    Bf16Spec,
    CompressionSpec,
    Int4Spec,
    Int8Spec,
    PowerSgdSpec,
    TopKSpec,
    WholeSpec,
)
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.spec.strategy import StrategySpec

# The MNIST CNN's: all but the biases are worth factors of rank 2.
SHAPES = [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (128, 9216), (128,), (10, 128), (10,)]


def strategy(compression: object, name: str = "allreduce", **fields: Any) -> StrategySpec:
    given = {"strategy": {"name": name, "compression": compression}, "workers": 2}
    job = job_from_mapping(given | fields)
    assert job_from_mapping(to_mapping(job)) == job
    return job.strategy


@pytest.mark.parametrize("name", COMPRESSIONS.built_in)
def test_a_name_stands_for_its_defaults(name: str) -> None:
    assert strategy(name) == strategy({"name": name})


@pytest.mark.parametrize(
    ("compression", "effect", "label"),
    [
        ("none", "exact", "allreduce"),
        ("bf16", "rounded", "allreduce, bf16"),
        ("int8", "rounded", "allreduce, int8"),
        ("int4", "lossy", "allreduce, int4"),
        ({"name": "powersgd", "rank": 4}, "lossy", "allreduce, powersgd rank 4"),
        ({"name": "topk", "share": 0.05}, "lossy", "allreduce, topk 0.05"),
        ("auto", "rounded", "allreduce, auto up to rounded"),
        ({"name": "auto", "accept": "lossy"}, "lossy", "allreduce, auto up to lossy"),
    ],
)
def test_effects_and_labels(compression: object, effect: str, label: str) -> None:
    found = strategy(compression)
    assert (found.effect, found.label()) == (effect, label)


@pytest.mark.parametrize(
    ("spec", "num_bytes"),
    [
        (WholeSpec(), 4 * 1_199_882),
        (Bf16Spec(), 2 * 1_199_882),
        # 293 blocks for each of four workers.
        (Int8Spec(), 4 * 293 * (4 + 1024)),
        (Int4Spec(), 4 * 2344 * (4 + 64)),
        (PowerSgdSpec(), 4 * (2 * 41 + 32 + 2 * (64 + 288) + 64 + 2 * 9344 + 128 + 2 * 138 + 10)),
        (TopKSpec(), 2 * 8 * 11_999),
        (AutoCompressionSpec(), 4 * 293 * (4 + 1024)),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_bytes_of_a_known_network(spec: CompressionSpec, num_bytes: int) -> None:
    assert spec.summed_bytes(SHAPES, 4) == num_bytes


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"compression": "int9"}, "int9"),
        ({"compression": {"name": "bf16", "rank": 2}}, "unknown key 'rank'"),
        (
            {"compression": "powersgd", "name": "parameter_server"},
            "parameter servers take no compression 'powersgd'; set one of none, bf16, int8, or "
            "'strategy: allreduce'",
        ),
        (
            {"compression": "int8", "backend": "ddp"},
            "backend ddp has no hook for compression 'int8'; set one of none, bf16, powersgd, or "
            "'backend: native'",
        ),
        (
            {
                "compression": {"name": "topk", "momentum": 0.9},
                "optimizer": {"name": "sgd", "momentum": 0.9},
            },
            "compression topk with a momentum replaces that of optimizer 'sgd'",
        ),
        (
            {"compression": {"name": "topk", "momentum": 0.9}, "optimizer": "adam"},
            "compression topk with a momentum replaces that of optimizer 'adam'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        strategy(**fields)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_momentum_of_its_own_goes_with_plain_sgd() -> None:
    found = strategy({"name": "topk", "momentum": 0.9}, optimizer="sgd")
    assert found.effect == "lossy"


def test_only_what_is_accepted_is_tried() -> None:
    def names(accept: Any) -> list[str]:
        return [one.name for one in AutoCompressionSpec(accept=accept).candidates()]

    assert names("exact") == ["none"]
    assert names("rounded") == ["none", "bf16", "int8"]
    assert names("lossy") == ["none", "bf16", "int8", "powersgd"]
