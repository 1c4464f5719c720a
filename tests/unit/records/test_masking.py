from __future__ import annotations

import pytest

from phalanx.records.masking import mask_secrets


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["phalanx", "train", "job.yaml"], ["phalanx", "train", "job.yaml"]),
        (["--token", "abc", "x"], ["--token", "***", "x"]),
        (["--api-key=abc", "x"], ["--api-key=***", "x"]),
        (["--set", "store.password=abc"], ["--set", "store.password=***"]),
        (["--set", "model={name: net, token: abc, width: 3}"], None),
        (["--to", "https://ada:pw@host/x"], ["--to", "https://***@host/x"]),
        (["--to", "https://host/x?token=abc&run=1"], ["--to", "https://host/x?token=***&run=1"]),
        (["--set", "workers=3", "--epochs", "2"], ["--set", "workers=3", "--epochs", "2"]),
        (["--set", "model.tokens=512"], ["--set", "model.tokens=512"]),
    ],
)
def test_values_that_are_named_like_secrets_are_masked(
    given: list[str], kept: list[str] | None
) -> None:
    found = mask_secrets(given)
    assert "abc" not in " ".join(found)
    assert "pw" not in " ".join(found)
    if kept is not None:
        assert found == kept
