"""Build what charts of a live run share: a time axis in a fitting unit, and finite values."""

from __future__ import annotations

import math

from phalanx.report.charts import Spec, axis, shorten

_UNITS = ((2 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"))


class TimeAxis:
    """Converts seconds since the run began to the unit of its charts.

    Args:
        end_s: The latest time that is shown.
    """

    def __init__(self, end_s: float) -> None:
        found = ((seconds, unit) for least_s, seconds, unit in _UNITS if end_s >= least_s)
        self._seconds, self.unit = next(found, (1.0, "seconds"))

    def at(self, time_s: float) -> float | None:
        """Return a time in the unit of the axis."""
        return shorten(time_s / self._seconds)

    @property
    def channel(self) -> Spec:
        """The horizontal channel of a chart."""
        title = f"time since the run began, {self.unit}"
        return axis("time", title, scale={"zero": True, "nice": False})


def finite(value: float | None) -> float | None:
    """Return a value that a chart can show: rounded, and None for one that is not finite."""
    return shorten(value) if value is not None and math.isfinite(value) else None
