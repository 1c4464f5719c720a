"""A dozen random faults; `benchmarks/soak.py` has a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.runs import Place
from support.soak import SCENARIOS, Scenario, SoakRun

NUM_FAULTS, SEED = 6, 3
SHORT = [scenario for scenario in SCENARIOS if scenario.name in ("bsp", "switch to async")]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_a_run_comes_to_its_right_end_under_random_faults(
    tmp_path: Path, cache: Path, scenario: Scenario
) -> None:
    run = SoakRun(Place(tmp_path, cache), scenario, seed=f"{SEED}", num_faults=NUM_FAULTS)
    report = run.run()
    assert report.findings == []
    assert len(report.deeds) >= NUM_FAULTS
