"""Which pairs of machines measure their link at the same time; pure.

The circle method of tournaments: in every round each machine is in at most one pair, and after all
rounds every pair has met exactly once. So no measurement shares a machine with another.
"""

from __future__ import annotations


def pair_rounds(num_machines: int, max_rounds: int | None = None) -> list[list[tuple[int, int]]]:
    """Pairs of indices, round by round.

    Args:
        num_machines: How many there are.
        max_rounds: Leave out further rounds; n machines have n or n - 1.
    """
    places = list(range(num_machines + num_machines % 2))
    half = len(places) // 2
    rounds = []
    for _ in range(len(places) - 1):
        met = zip(places[:half], reversed(places[half:]), strict=True)
        # With an odd number one place is empty, and who meets it has a rest.
        rounds.append([(a, b) for a, b in met if max(a, b) < num_machines])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds[:max_rounds]
