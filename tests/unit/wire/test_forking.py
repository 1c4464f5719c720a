from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phalanx.wire.forking import SPIN_COUNT, bounded_spin

REPORT = "from phalanx.worker.bootstrap import _limit_threads; _limit_threads(2); import torch"


def test_idle_threads_spin_for_a_while_unless_the_user_decides() -> None:
    assert bounded_spin({}) == {"GOMP_SPINCOUNT": str(SPIN_COUNT)}
    assert bounded_spin({"OMP_WAIT_POLICY": "ACTIVE"}) == {}
    assert bounded_spin({"GOMP_SPINCOUNT": "infinity"}) == {}


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "77"}])
def test_the_library_reads_the_bound_when_it_is_loaded(given: dict[str, str]) -> None:
    kept = {key: value for key, value in os.environ.items() if "OMP_" not in key}  # noqa: TID251
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        env={**kept, **given, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        # torch for another processor is built with another library, which has no such variable.
        assert "libgomp" not in done.stderr
        return
    assert f"GOMP_SPINCOUNT = '{given.get('GOMP_SPINCOUNT', SPIN_COUNT)}'" in done.stderr
