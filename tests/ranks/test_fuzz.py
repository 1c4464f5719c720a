"""Malformed frames on every socket of ours; `benchmarks/fuzz.py` sends a million of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fuzz import TARGETS, FuzzTarget, fuzz

SEED = 7
# A connection costs more than a frame.
FRAMES = {True: 3000, False: 300}
# Their mends are on the way.
NOT_YET = ("store socket, member", "lines from an agent", "lines to an agent")
MENDED = [target for target in TARGETS if target.name not in NOT_YET]


@pytest.mark.parametrize("target", MENDED, ids=lambda target: target.name)
def test_malformed_frames_do_nothing(target: type[FuzzTarget], tmp_path: Path) -> None:
    num_frames = FRAMES[target.share >= 1.0]
    result = fuzz(target, tmp_path, num_frames=num_frames, seed=SEED)
    assert result.findings == []
    assert result.frames == num_frames
