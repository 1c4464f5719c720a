"""What `backend: tensorflow` accepts, and how it refuses what TensorFlow cannot express."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import ExitCode, SpecError
from phalanx.spec.loader import job_from_mapping

SERVING = {"name": "parameter_server", "dispatch": "dynamic"}


def job(**settings: Any) -> dict[str, Any]:
    return {"backend": "tensorflow", "workers": 2, **settings}


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1, "strategy": "single"},
        {"strategy": {"name": "allreduce", "bucket_bytes": 65536}},
        {"strategy": "mirrored"},
        {"strategy": "central_storage", "batch": {"global": 64, "shares": [3, 1]}},
        {"strategy": SERVING | {"servers": 2, "min_shard_bytes": 1024, "lr_scaling": "none"}},
        {
            "strategy": {
                "name": "switch",
                "handover": "restart",
                "phases": [{"strategy": "allreduce"}, {"strategy": SERVING, "at": 0.5}],
            }
        },
        {"model": "my_package.net:build", "precision": "bf16"},
    ],
)
def test_what_tensorflow_can_express_is_accepted(settings: dict[str, Any]) -> None:
    assert job_from_mapping(job(**settings)).backend == "tensorflow"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"strategy": "local_sgd"}, "backend tensorflow has no strategy 'local_sgd'"),
        (
            {"strategy": {"name": "allreduce", "compression": "bf16"}},
            "backend tensorflow sends gradients in full precision; leave 'compression' out",
        ),
        ({"strategy": SERVING | {"consistency": "ssp"}}, "has no consistency 'ssp'"),
        ({"strategy": SERVING | {"consistency": "k_sync", "k": 1}}, "has no consistency 'k_sync'"),
        ({"strategy": SERVING | {"compression": "int8"}}, "has no compression 'int8'"),
        ({"strategy": SERVING | {"pull_compression": "bf16"}}, "has no pull_compression 'bf16'"),
        ({"strategy": SERVING | {"lr_scaling": "by_staleness"}}, "set 'none' or 'by_workers'"),
        ({"strategy": SERVING | {"overlap": True}}, "has no overlap 'True'"),
        ({"strategy": SERVING | {"encrypt": "always"}}, "its channels are open"),
        ({"strategy": SERVING | {"servers": "colocated"}}, "no servers inside its workers"),
        ({"strategy": SERVING | {"snapshot_s": 5.0}}, "its servers keep no copies"),
        (
            {"strategy": "parameter_server"},
            "backend tensorflow has no dispatch 'static'; its coordinator gives work to free "
            "workers: set 'dynamic'",
        ),
        ({"strategy": "switch"}, "set 'handover: restart'"),
        (
            {"strategy": {"name": "switch", "handover": "restart"}},
            "no servers inside its workers",
        ),
        ({"precision": "auto"}, "set 'precision: fp32' or 'precision: bf16'"),
        ({"strategy": SERVING, "profile": {"epochs": "1"}}, "leave 'profile' out"),
        ({"profile": {"epochs": "1", "memory": True}}, "leave 'profile.memory' out"),
        ({"strategy": SERVING, "inject": [{"rank": 0}]}, "leave 'inject' out"),
    ],
)
def test_what_it_cannot_is_refused_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refusal:
        job_from_mapping(job(**settings))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == ExitCode.BAD_INPUT


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
@pytest.mark.parametrize("backend", ["native", "ddp"])
def test_strategies_within_one_process_are_tensorflows_own(strategy: str, backend: str) -> None:
    with pytest.raises(SpecError, match=f"'{strategy}'"):
        job_from_mapping({"backend": backend, "workers": 2, "strategy": strategy})


def test_replicas_within_one_process_need_one_process() -> None:
    assert job_from_mapping(job(strategy="mirrored")).worker_processes == 1
    assert job_from_mapping(job()).worker_processes == 2
