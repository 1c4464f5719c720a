"""Sort operators into groups by rules: the spec of a rules file, its loader, and its use.

The packaged rules are `operator_groups.yaml`; `phalanx profile --rules` takes others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from phalanx.records.profile import OperatorTime
from phalanx.spec.base import ListOf, Spec, fault
from phalanx.spec.document import read_settings
from phalanx.spec.messages import validated

IDLE, OTHER = "idle", "other"
"""Groups that no rule makes: time in no operator, and operators that no rule matches."""
REGEX = "re:"


class GroupRule(Spec):
    """One group and the operators in it."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    """Name in tables."""
    match: Annotated[ListOf[str], Field(min_length=1)]
    """Patterns of `span/operator`, such as `*/aten::*conv*`; with `re:` before it, a regular
    expression that is looked for anywhere."""

    @model_validator(mode="after")
    def _usable(self) -> GroupRule:
        if self.name in (IDLE, OTHER):
            raise fault(
                f"group '{self.name}' is made without a rule",
                "; it holds what is left over",
                at=("name",),
            )
        for pattern in self.match:
            if pattern.startswith(REGEX):
                try:
                    re.compile(pattern.removeprefix(REGEX))
                except re.error as error:
                    text = f"'{pattern}' is no regular expression: {error}"
                    raise fault(text, at=("match",)) from None
        return self


class GroupingSpec(Spec):
    """All groups; an operator belongs to the first whose rule matches it."""

    groups: Annotated[ListOf[GroupRule], Field(min_length=1)]
    """In the order in which they are tried."""

    @model_validator(mode="after")
    def _no_repeats(self) -> GroupingSpec:
        names = [rule.name for rule in self.groups]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise fault(f"group '{repeated}' is there twice", "; join their patterns")
        return self


def load_grouping(path: Path) -> GroupingSpec:
    """Read a rules file. SpecError says file, line and what would be right."""
    such_as = (
        "rules are a list under 'groups', such as "
        "'groups: [{name: convolution, match: [\"*/aten::*conv*\"]}]'"
    )
    return validated(read_settings(path, such_as), GroupingSpec)


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
