"""Open a run with its curves; apart from `curves` because it loads torch."""

from __future__ import annotations

from phalanx.notebook.curves import By, LearningCurves, draw_curves
from phalanx.results.trained_run import TrainedRun


class OpenedRun(TrainedRun):
    """A run, what it trained, and its learning curves."""

    def plot(self, *measures: str, by: By = "epoch") -> LearningCurves:
        """Draw learning curves: a notebook shows them, `.save("x.png")` writes them.

        Args:
            measures: Such as `loss`, `accuracy` or a metric; none: all that the run recorded.
            by: The axis: `epoch`, `time` (of training) or `samples`.

        Raises:
            SpecError: There is no such measure or axis.
            StoreError: No epoch has ended.
        """
        return draw_curves(self._run, measures, by=by)
