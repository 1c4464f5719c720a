from __future__ import annotations

import numpy as np
import pytest

from phalanx.data.arrays import as_inputs


@pytest.mark.parametrize(
    ("shape", "stored", "kept"),
    [
        ((6, 5), np.int64, np.int64),
        ((6, 5), np.uint32, np.int64),
        ((6, 5), np.uint8, np.int32),
        ((6,), np.int32, np.int32),
        ((6, 5), np.float64, np.float32),
        ((6, 5), np.bool_, np.float32),
        ((6, 5, 4), np.uint8, np.uint8),
        ((6, 5, 4), np.int16, np.float32),
    ],
)
def test_rows_of_whole_numbers_stay_whole(
    shape: tuple[int, ...], stored: type[np.generic], kept: type[np.generic]
) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(stored)
    found = as_inputs(values, origin="file.npz")
    assert found.dtype == kept
    assert np.array_equal(found.reshape(shape), values)
