"""Split samples into training, validation and test: the same for every run on a data set.

The split depends on a constant and not on the job's seed, so that runs with different seeds are
measured on the same samples. Pure functions; `dataset` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.data.order import random_order

_SEED = 20_111  # any constant; changing it changes every validation set
_TEST, _LIMIT, _VALIDATION = range(3)  # one stream of random numbers for each decision
AUTO_VALIDATION = 0.1  # for the MNIST family this is the customary 6,000 of 60,000

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Sorted row numbers; `test` is None if the data set has its own test part."""

    train: Rows
    validation: Rows
    test: Rows | None


def split_rows(
    num_samples: int,
    *,
    validation: float | Literal["auto"] = "auto",
    limit: int | None = None,
    test_share: float | None = None,
) -> Split:
    """Split the rows of a training part.

    Args:
        num_samples: Rows in the part.
        validation: Share held out of what remains after test rows and limit.
        limit: Maximum of rows kept, chosen at random, before holding out the validation share.
        test_share: Share that becomes the test part; None: the data set has its own.
    """
    rows = np.arange(num_samples, dtype=np.int64)
    test = None
    if test_share is not None:
        rows, test = _hold_out(rows, _held(num_samples, test_share), _TEST)
    if limit is not None and limit < len(rows):
        _, rows = _hold_out(rows, limit, _LIMIT)
    share = AUTO_VALIDATION if validation == "auto" else validation
    train, held = _hold_out(rows, _held(len(rows), share), _VALIDATION)
    return Split(train=train, validation=held, test=test)


def _held(num_samples: int, share: float) -> int:
    """Return the rows to hold out: at least one if a share is given, and never all."""
    if share == 0 or num_samples < 2:
        return 0
    return min(max(1, round(num_samples * share)), num_samples - 1)


def _hold_out(rows: Rows, count: int, stream: int) -> tuple[Rows, Rows]:
    """Take `count` rows out at random: (those that stay, those taken), both sorted."""
    taken = np.zeros(len(rows), dtype=bool)
    taken[random_order(len(rows), (_SEED, stream))[:count]] = True
    return rows[~taken], rows[taken]
