"""The Pareto front against trying everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.report.parts.tradeoff import dominators, front

points = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2),
    st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)),
    min_size=1,
    max_size=8,
)


def test_by_hand() -> None:
    found = {"quick": (1.0, 0.90), "good": (5.0, 0.99), "slow": (6.0, 0.95), "even": (1.0, 0.90)}
    assert front(found) == ["even", "quick", "good"]
    assert dominators(found)["slow"] == "good"


@given(points)
def test_what_is_off_the_front_is_beaten_by_somebody_on_it(
    found: dict[str, tuple[float, float]],
) -> None:
    on = front(found)
    assert on
    for name, other in dominators(found).items():
        if other is None:
            continue
        assert other in on
        assert found[other][0] <= found[name][0]
        assert found[other][1] >= found[name][1]
        assert found[other] != found[name]
