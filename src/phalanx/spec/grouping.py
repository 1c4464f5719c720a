"""Describe rules that sort operators into groups: the spec of a rules file, and its loader.

The packaged rules are `report/operator_groups.yaml`; `phalanx profile --rules` takes others.
`report.grouping` applies them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from phalanx.errors import SpecError
from phalanx.spec.base import ListOf, Spec, fault
from phalanx.spec.document import read
from phalanx.spec.messages import spec_error

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
    """Read a rules file.

    Raises:
        SpecError: One sentence with file, line and what would be right.
    """
    document = read(path)
    if not isinstance(document.data, dict):
        raise SpecError(
            f"{path}: rules are a list under 'groups', such as "
            "'groups: [{name: convolution, match: [\"*/aten::*conv*\"]}]'",
            file=str(path),
        )
    try:
        return GroupingSpec.model_validate(document.data)
    except ValidationError as error:
        raise spec_error(error, document, GroupingSpec) from None
