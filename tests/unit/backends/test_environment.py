"""A machine without the extra says which one to install."""

from __future__ import annotations

import pytest

from phalanx.backends.tensorflow import environment
from phalanx.errors import ExitCode, SpecError


@pytest.mark.parametrize("absent", ["tensorflow", "keras"])
def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    present = environment.find_spec
    monkeypatch.setattr(
        environment, "find_spec", lambda name: None if name == absent else present("json")
    )
    with pytest.raises(SpecError, match=r"pip install 'phalanx\[tensorflow\]'") as refusal:
        environment.prepare_environment()
    assert absent in str(refusal.value)
    assert refusal.value.exit_code == ExitCode.BAD_INPUT
