"""Describe the equivalence of backends: whether they learn the same from the same job.

Part of the chapter `Same result?`, if cells differ in nothing but their backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.report.cells import Cell, differences
from phalanx.report.gate import Verdict
from phalanx.report.pairs import Pair

_WORDS: Mapping[Verdict, str] = {
    "equivalent": "the same within tolerance",
    "different": "different",
    "undecided": "not shown to be the same",
}


def backend_lines(pairs: Sequence[Pair]) -> list[str]:
    """Write one sentence per pair of backends; none if no cells differ in the backend alone."""
    found: dict[tuple[str, str], dict[Verdict, list[str]]] = {}
    for pair in pairs:
        if pair.gate is None or differences([pair.first.job, pair.second.job])[1] != ["backend"]:
            continue
        names = (str(pair.first.job["backend"]), str(pair.second.job["backend"]))
        places = found.setdefault(names, {}).setdefault(pair.gate.verdict, [])
        places.append(_place(pair.first, backend=names[0]))
    if not found:
        return []
    sentences = [
        f"{first} against {second}: " + "; ".join(_judged(v, p) for v, p in verdicts.items()) + "."
        for (first, second), verdicts in found.items()
    ]
    intro = (
        "Backends, all other settings equal (built-in networks are one computation in every "
        "backend; first weights follow the same law, but TensorFlow draws them from a generator of "
        "its own):"
    )
    return [" ".join([intro, *sentences])]


def _place(cell: Cell, *, backend: str) -> str:
    """Name a cell without its backend: task, the rest of its method, batch."""
    method = [part for part in cell.method.split(", ") if part != backend]
    return ", ".join([cell.task, *method, f"batch {cell.batch}"])


def _judged(verdict: Verdict, places: Sequence[str]) -> str:
    return f"{_WORDS[verdict]} for {' and '.join(dict.fromkeys(places))}"
