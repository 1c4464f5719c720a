from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.paramserver.compression import KINDS, Encoder, Received, payload_bytes
from phalanx.spec.compression import INT8_BLOCK
from phalanx.wire.bulk import Kind
from support.paramserver import small_layout


def decoded(encoder: Encoder, payload: torch.Tensor, size: int) -> torch.Tensor:
    values = torch.empty(size)
    Received(encoder.kind, payload.view(torch.uint8).clone(), size).write_to(values)
    return values


@given(
    st.sampled_from(["none", "bf16", "int8"]),
    st.integers(1, 3 * INT8_BLOCK),
    st.integers(0, 2**32 - 1),
)
def test_what_is_lost_in_one_push_comes_with_the_next(
    compression: str, size: int, seed: int
) -> None:
    layout = small_layout(size, segments=1)
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    encoder = Encoder(compression, layout)
    total = torch.zeros(size)
    rounds = 20
    for _ in range(rounds):
        payload = encoder.encode(layout.segments[0], gradient)
        assert payload.nbytes == payload_bytes(encoder.kind, size)
        total += decoded(encoder, payload, size)
    # Without feedback the error would grow with the rounds; with it, one rounding remains.
    step = {"none": 1e-5, "bf16": 2**-7, "int8": 1 / 64}[compression]
    assert (total - rounds * gradient).abs().max() <= step * gradient.abs().max() + 1e-5


def test_a_tiny_gradient_is_not_lost_beside_a_large_one() -> None:
    layout = small_layout(2, segments=1)
    encoder = Encoder("int8", layout)
    gradient = torch.tensor([1.0, 0.001])
    total = torch.zeros(2)
    for _ in range(1000):
        total += decoded(encoder, encoder.encode(layout.segments[0], gradient), 2)
    assert total[1] == pytest.approx(1.0, abs=0.01)


def test_without_compression_nothing_is_copied() -> None:
    layout = small_layout(5, segments=1)
    gradient = torch.ones(5)
    encoder = Encoder("none", layout)
    assert encoder.encode(layout.segments[0], gradient).data_ptr() == gradient.data_ptr()
    assert encoder.state() is None


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.INT8])
def test_frames_at_odd_addresses_are_read_rightly(kind: Kind) -> None:
    compression = next(name for name, known in KINDS.items() if known == kind)
    layout = small_layout(10, segments=1)
    encoder = Encoder(compression, layout)
    gradient = torch.arange(10, dtype=torch.float32)
    payload = encoder.encode(layout.segments[0], gradient).view(torch.uint8)
    shifted = torch.zeros(payload.nbytes + 1, dtype=torch.uint8)
    shifted[1:] = payload
    received = Received(kind, shifted[1:], 10)
    values, total = torch.empty(10), torch.ones(10)
    received.write_to(values)
    received.add_to(total)
    assert torch.allclose(values, gradient, atol=0.05)
    assert torch.allclose(total, gradient + 1, atol=0.05)


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="do not hold"):
        Received(Kind.F32, memoryview(bytearray(12)), 4)


def test_an_all_zero_gradient_stays_zero() -> None:
    layout = small_layout(7, segments=1)
    encoder = Encoder("int8", layout)
    assert decoded(encoder, encoder.encode(layout.segments[0], torch.zeros(7)), 7).eq(0).all()
