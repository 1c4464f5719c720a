"""Which jobs may be elastic, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.strategy import FailureLimit


def test_losses_are_borne_only_where_asked_for() -> None:
    assert job_from_mapping({"workers": 2}).tolerated_failures.count == 0
    limit = job_from_mapping({"workers": 2, "elastic": {}}).tolerated_failures
    assert limit == FailureLimit(100, 3600.0, section="elastic", first_delay_s=1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "local_sgd"}, "strategy 'local_sgd' cannot lose workers and go on"),
        ({"strategy": "split"}, "strategy 'split' cannot lose workers and go on"),
        ({"backend": "ddp"}, "backend ddp cannot lose workers and go on"),
        ({"elastic": {"min": 3}}, "elastic.min is 3, which is more than workers: 2"),
        (
            {"strategy": {"name": "allreduce", "compression": "bf16"}},
            "an elastic run sends gradients whole",
        ),
        ({"data": {"name": "digits", "shard": "off"}}, "deals out each batch"),
        ({"precision": "auto"}, "elastic runs take precision: fp32 or bf16"),
        ({"profile": {"epochs": "1"}}, "elastic runs take profile: null"),
    ],
)
def test_what_could_not_go_on_exactly_is_refused_in_one_sentence(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        job_from_mapping({"workers": 2, "elastic": {"min": 1}} | settings)
