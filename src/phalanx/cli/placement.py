"""Describe a split network: placement of its parts, predicted and measured figures."""

from __future__ import annotations

from phalanx.records.events import Placed
from phalanx.records.summary import SplitSummary
from phalanx.report.format import format_bytes, format_duration, format_places
from phalanx.split.placement import DATA_PARALLEL, SplitForecast


def placement_lines(placed: Placed) -> list[str]:
    """Describe the placement with its forecast beside those of naive placements."""
    forecast = placed.forecast
    best = ", the best of all" if placed.proven else ""
    lines = [f"placement {forecast.placement}{best}: {format_places(forecast.places)}"]
    lines.append(f"predicted: {_figures(forecast)}")
    lines += [f"  {other.placement} would be: {_figures(other)}" for other in placed.others]
    return lines + [f"  {reason}" for reason in data_parallel_reasons(placed)]


def data_parallel_reasons(placed: Placed) -> list[str]:
    """Compare the forecast of the split with that of data parallelism."""
    other = next((one for one in placed.others if one.placement == DATA_PARALLEL), None)
    if other is None:
        return []
    own = placed.forecast
    faster, slower = ("split", "data parallelism")
    factor = other.step_s / own.step_s
    if factor < 1:
        faster, slower, factor = slower, faster, 1 / factor
    sent = other.sent_bytes / max(1, own.sent_bytes)
    traffic = f"sends {sent:,.0f} times less" if sent >= 1 else f"sends {1 / sent:,.1f} times more"
    return [
        f"{faster} is expected to be {factor:.1f} times as fast as {slower}: splitting {traffic}, "
        f"and its busiest worker computes {format_duration(max(own.busy_s))} of each step, against "
        f"{format_duration(max(other.busy_s))}"
    ]


def _figures(forecast: SplitForecast) -> str:
    return (
        f"step {format_duration(forecast.step_s)}, imbalance {forecast.imbalance:.2f}, "
        f"{format_bytes(forecast.sent_bytes)} per step"
    )


def split_rows(split: SplitSummary) -> list[tuple[str, str]]:
    """Return predicted beside measured figures, for the result of a run."""
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in split.bytes_by_kind.items())
    return [
        ("split", f"{split.placement}: {format_places(split.places)}"),
        (
            "",
            f"step {format_duration(split.step_s)} (predicted "
            f"{format_duration(split.predicted_step_s)}), imbalance {split.imbalance:.2f} "
            f"({split.predicted_imbalance:.2f}), per step {format_bytes(split.bytes_per_step)} "
            f"({format_bytes(split.predicted_bytes_per_step)})",
        ),
        ("", f"sent in all: {kinds or 'nothing'}"),
    ]
