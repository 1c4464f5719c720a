"""Rates worked out by hand."""

from pathlib import Path

import pytest

from phalanx.engine.schedule import learning_rate
from phalanx.errors import EngineError, SpecError
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.spec.schedule import ConstantSpec, CosineSpec, MilestonesSpec, ScheduleSpec


def rate(schedule: ScheduleSpec, seen: int) -> float:
    return learning_rate(
        schedule, peak=0.4, samples_seen=seen, total_samples=1000, samples_per_epoch=100
    )


def test_constant() -> None:
    assert [rate(ConstantSpec(), seen) for seen in (0, 999, 5000)] == [0.4, 0.4, 0.4]


def test_warmup_climbs_linearly_then_stays() -> None:
    schedule = ConstantSpec(warmup=0.2, warmup_from=0.25)
    rates = [rate(schedule, seen) for seen in (0, 100, 200, 201)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_milestones_by_share_change_at_the_exact_sample() -> None:
    # 0.7 * 1000 and 0.29 * 1000 are not whole in binary.
    schedule = MilestonesSpec(at=(0.29, 0.7))
    seen = (0, 289, 290, 699, 700, 1000)
    assert [rate(schedule, s) for s in seen] == pytest.approx([0.4, 0.4, 0.04, 0.04, 0.004, 0.004])


def test_milestones_by_epoch_with_warmup() -> None:
    schedule = MilestonesSpec(at_epochs=(0.5, 8), factor=0.5, warmup=0.1, warmup_from=0.5)
    seen = (0, 49, 50, 100, 799, 800)
    expected = [0.2, 0.4 * 0.745, 0.4 * 0.75 * 0.5, 0.2, 0.2, 0.1]
    assert [rate(schedule, s) for s in seen] == pytest.approx(expected)


def test_cosine_falls_from_peak_to_floor() -> None:
    schedule = CosineSpec(floor=0.1)
    assert [rate(schedule, s) for s in (0, 500, 1000, 1500)] == pytest.approx(
        [0.4, 0.4 * 0.55, 0.04, 0.04]
    )


def test_cosine_starts_where_warmup_ends() -> None:
    schedule = CosineSpec(warmup=0.2, warmup_from=0.1)
    assert [rate(schedule, s) for s in (0, 200, 600, 1000)] == pytest.approx(
        [0.04, 0.4, 0.2, 0.0], abs=1e-12
    )


def test_steps_do_not_matter() -> None:
    schedule = CosineSpec()
    by_ones = [rate(schedule, s) for s in range(0, 1000, 10)]
    by_tens = [rate(schedule, s) for s in range(0, 1000, 100)]
    assert by_ones[::10] == by_tens


def test_a_function_of_the_user_is_the_curve_and_warms_up_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_curve.py").write_text(
        "def square_root(seen, *, total_samples, samples_per_epoch, floor):\n"
        "    return max(floor, 1 - (seen / total_samples) ** 0.5)\n"
        "def broken(seen, **others):\n"
        "    return None\n"
        "def failing(seen, **others):\n"
        "    raise KeyError('x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = {"name": "own_curve:square_root", "args": {"floor": 0.25}, "warmup": 0.1}
    schedule = job_from_mapping({"schedule": given}).schedule
    assert job_from_mapping({"schedule": to_mapping(schedule)}).schedule == schedule
    assert rate(schedule, 0) == pytest.approx(0.4 * 0.1)
    assert rate(schedule, 250) == pytest.approx(0.4 * 0.5)
    assert rate(schedule, 1000) == pytest.approx(0.4 * 0.25)
    broken = job_from_mapping({"schedule": "own_curve:broken"}).schedule
    with pytest.raises(EngineError, match="returned None after 5 samples"):
        rate(broken, 5)
    failing = job_from_mapping({"schedule": "own_curve:failing"}).schedule
    with pytest.raises(EngineError, match="'own_curve:failing' failed: KeyError"):
        rate(failing, 5)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="did you mean 'cosine'"):
        job_from_mapping({"schedule": "cosin"})
