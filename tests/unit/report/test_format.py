from __future__ import annotations

import pytest

from phalanx.report import format as f


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (2 * 1024**6, "2048.0 PiB"),
    ],
)
def test_bytes_are_in_binary_units(size_bytes: int, text: str) -> None:
    assert f.format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (0.4249, "0.42 s"),
        (0.996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
        (273_600, "3 d 04 h"),
        (None, "-"),
        (float("inf"), "-"),
    ],
)
def test_durations_never_show_sixty_of_anything(seconds: float | None, text: str) -> None:
    assert f.format_duration(seconds) == text


def test_clock() -> None:
    assert [f.format_clock(s) for s in (7.9, 750, 3723)] == ["0:07", "12:30", "1:02:03"]


@pytest.mark.parametrize(
    ("rate", "text"),
    [(7.254, "7.25 samples/s"), (99.94, "99.9 samples/s"), (12_345.6, "12,346 samples/s")],
)
def test_rates_show_three_digits_or_whole_numbers(rate: float, text: str) -> None:
    assert f.format_rate(rate) == text


@pytest.mark.parametrize(
    ("loss", "text"),
    [(None, "-"), (0.0, "0.0000"), (0.00012, "1.2e-04"), (0.12344, "0.1234"), (123.456, "123.5")],
)
def test_losses(loss: float | None, text: str) -> None:
    assert f.format_loss(loss) == text


def test_shares_and_accuracy() -> None:
    assert f.format_accuracy(0.97222) == "97.22 %"
    assert f.format_accuracy(None) == "-"
    assert f.format_shares({"input": 0.02, "compute": 0.98}) == "input 2 %, compute 98 %"
    assert f.format_shares({}) == "-"
    assert f.format_ratio(1.314) == "1.31x"


def test_nouns_agree_with_their_number() -> None:
    assert f.count_noun(1, "worker") == "1 worker"
    assert f.count_noun(4096, "worker") == "4,096 workers"
