"""Where the parts of a split network went, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def describe_places(places: Mapping[str, Sequence[int]]) -> str:
    """Which worker holds what; runs of parts with a common beginning are drawn together."""
    by_worker: dict[tuple[int, ...], list[str]] = {}
    for part, workers in places.items():
        by_worker.setdefault(tuple(workers), []).append(part)
    shown = []
    for workers, parts in sorted(by_worker.items()):
        who = "+".join(str(worker) for worker in workers)
        shown.append(f"worker {who}: {', '.join(drawn_together(parts, places))}")
    return "; ".join(shown)


def drawn_together(parts: Sequence[str], among: Mapping[str, object]) -> list[str]:
    """Names of parts, with `branch.*` for a branch that is whole.

    Args:
        parts: To be named.
        among: All parts of the network, by name.
    """
    found: list[str] = []
    for part in parts:
        branch = part.partition(".")[0]
        whole = [name for name in among if name.partition(".")[0] == branch]
        if len(whole) > 1 and all(name in parts for name in whole):
            found.append(f"{branch}.*")
        else:
            found.append(part)
    return list(dict.fromkeys(found))
