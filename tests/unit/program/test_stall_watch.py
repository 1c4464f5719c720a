"""A script that hangs in a batch is named, with its line, within ten seconds."""

from __future__ import annotations

import os
from queue import SimpleQueue

import pytest

from phalanx.program import stall_watch
from phalanx.program.stall_watch import StallWatch

PROMISED_S = 10.0


def test_it_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stall_watch.LIMIT_S + stall_watch._LOOK_S <= PROMISED_S
    monkeypatch.setattr(stall_watch, "LIMIT_S", 0.01)
    monkeypatch.setattr(stall_watch, "_LOOK_S", 0.01)
    told: SimpleQueue[str] = SimpleQueue()
    name = os.path.basename(__file__)
    watch = StallWatch(name, told.put)
    with watch.watching():
        watch.begin_turn()
        # This line stands for a script that does not go on.
        text = told.get(timeout=60)
        watch.end_turn()
    assert text.startswith("has been 0 s on one batch, in line ")
    assert text.endswith(f" of {name}; others wait")
    assert told.empty()
