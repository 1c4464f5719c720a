"""Sort operators into groups by rules, first match wins; pure, except for reading the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path

from phalanx.records.profile import OperatorTime
from phalanx.spec.grouping import OTHER, REGEX, GroupingSpec, load_grouping

Grouping = Callable[[str, str], str]
"""Maps a span and an operator to a group."""


def read_grouping(path: Path | None = None) -> Grouping:
    """Read the rules of a file, or the packaged ones."""
    if path is not None:
        return make_grouping(load_grouping(path))
    packaged = resources.files("phalanx.report") / "operator_groups.yaml"
    with resources.as_file(packaged) as file:
        return make_grouping(load_grouping(file))


def make_grouping(spec: GroupingSpec) -> Grouping:
    """Compile rules into a function."""
    tests = [(_test(pattern), rule.name) for rule in spec.groups for pattern in rule.match]

    @cache
    def group(span: str, operator: str) -> str:
        text = f"{span}/{operator}"
        return next((name for matches, name in tests if matches(text)), OTHER)

    return group


def _test(pattern: str) -> Callable[[str], bool]:
    if pattern.startswith(REGEX):
        search = re.compile(pattern.removeprefix(REGEX)).search
        return lambda text: search(text) is not None
    return lambda text: fnmatchcase(text, pattern)


def sum_groups(operators: Iterable[OperatorTime], grouping: Grouping) -> dict[str, float]:
    """Sum operator times in seconds by group."""
    sums: dict[str, float] = {}
    for operator in operators:
        name = grouping(operator.span, operator.name)
        sums[name] = sums.get(name, 0.0) + operator.self_s
    return sums
