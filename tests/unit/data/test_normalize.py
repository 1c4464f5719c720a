from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_files
from phalanx.data import normalize as statistics
from phalanx.data.normalize import Normalizer, measure


def _normalised(kind: str, samples: np.ndarray) -> np.ndarray:
    normalizer = Normalizer(kind, statistics=measure(samples), like=samples)
    return normalizer(samples, normalizer.buffer(len(samples) + 3))


def test_standard_per_channel():
    images = data_files.images(40, (5, 6, 3))
    images[..., 1] //= 4
    result = _normalised("standard", images)
    assert result.dtype == np.float32
    assert result.shape == images.shape
    assert result.flags.c_contiguous
    assert np.allclose(result.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    assert np.allclose(result.std(axis=(0, 1, 2)), 1, atol=1e-5)


def test_standard_per_feature():
    values = np.random.default_rng(0).normal(5, 3, (200, 4)).astype(np.float32)
    result = _normalised("standard", values)
    assert np.allclose(result.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(result.std(axis=0), 1, atol=1e-4)


def test_unit():
    images = data_files.images(10)
    assert np.allclose(_normalised("unit", images), images / 255.0, atol=1e-7)
    values = np.array([[2.0, 5.0], [4.0, 5.0]], dtype=np.float32)
    assert _normalised("unit", values).tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_centered_subtracts_the_mean_and_keeps_the_width_of_unit():
    images = data_files.images(40, (5, 6, 3))
    images[..., 1] //= 4
    means = images.reshape(-1, 3).mean(axis=0)
    assert np.allclose(_normalised("centered", images), (images - means) / 255.0, atol=1e-6)
    values = np.array([[2.0, 5.0], [4.0, 5.0]], dtype=np.float32)
    assert _normalised("centered", values).tolist() == [[-0.5, 0.0], [0.5, 0.0]]


def test_none_keeps_the_values():
    images = data_files.images(10)
    assert np.array_equal(_normalised("none", images), images.astype(np.float32))


def test_a_constant_channel_becomes_zero():
    images = np.full((3, 2, 2, 1), 9, dtype=np.uint8)
    assert np.allclose(_normalised("standard", images), 0)


@given(rows=st.integers(1, 30), shape=st.sampled_from([(3,), (2, 2, 1), (4, 3, 3)]), data=st.data())
def test_statistics_in_chunks_are_those_of_the_whole(rows, shape, data):
    kind = data.draw(st.sampled_from([np.uint8, np.float32]))
    samples = data_files.images(rows, shape).astype(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_CHUNK_BYTES", data.draw(st.integers(1, 500)))
        found = measure(samples)
    flat = samples.reshape(-1, shape[-1]).astype(np.float64)
    assert np.allclose(found.mean, flat.mean(axis=0))
    assert np.allclose(found.std, flat.std(axis=0), atol=1e-6)
    assert np.allclose(found.low, flat.min(axis=0))
    assert np.allclose(found.high, flat.max(axis=0))


def test_whole_numbers_stay_what_they_are_where_a_network_reads_them() -> None:
    ids = np.array([[1, 40_000_001], [7, 2]], dtype=np.int64)
    normalizer = Normalizer("standard", statistics=measure(ids), like=ids, whole_numbers=True)
    found = normalizer(ids, normalizer.buffer(5))
    assert found.dtype == normalizer.dtype == np.int64
    assert found.tolist() == ids.tolist(), "float32 cannot tell 40,000,001 from its neighbours"
    # For networks that compute with quantities they are quantities.
    quantities = Normalizer("standard", statistics=measure(ids), like=ids)
    found = quantities(ids, quantities.buffer(2))
    assert found.dtype == np.float32
    assert np.allclose(found, [[-1, 1], [1, -1]])
