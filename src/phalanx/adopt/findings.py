"""Values that an analysis returns: findings by line, strategies that fit, and the new source.

No parsing here; `analysis` fills these, `cli.adopt` and programs read them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.errors import SpecError

STRATEGIES = ("single", "allreduce", "local_sgd", "parameter_server", "switch")
"""Strategies that may fit a script; `split` needs a network with declared parts."""

LOCKSTEP = ("single", "allreduce", "local_sgd")
"""Strategies whose workers keep the script's own optimiser and see its gradients."""


class FindingSeverity(StrEnum):
    """What a finding means for the rewriting."""

    CHANGED = "changed"  # the diff deals with it
    NOTE = "note"  # works as it is; good to know
    REFUSED = "refused"  # stands in the way: nothing is rewritten


@dataclass(frozen=True)
class ScriptFinding:
    """One thing seen in the script.

    Attributes:
        line: Where, counted from 1; 0 for the script as a whole.
        severity: Whether it was changed, is worth knowing, or prevents rewriting.
        name: Stable word for machines, such as `lbfgs` or `hidden-state`.
        what: What stands there.
        why: Why that matters when several workers run the script.
        todo: What to do about it; empty where the diff does it.
        strategies: Strategies that remain possible.
    """

    line: int
    severity: FindingSeverity
    name: str
    what: str
    why: str
    todo: str = ""
    strategies: tuple[str, ...] = STRATEGIES


@dataclass
class Adoption:
    """Everything that was found out about one script.

    Attributes:
        path: As it was given.
        source: Text of the script.
        rewritten: Text that runs distributed; None where the script was refused, the same text
            where nothing has to change.
        findings: In the order of their lines.
    """

    path: str
    source: str
    rewritten: str | None = None
    findings: list[ScriptFinding] = field(default_factory=list)

    @property
    def refusals(self) -> list[ScriptFinding]:
        """Return what prevents rewriting."""
        return [one for one in self.findings if one.severity is FindingSeverity.REFUSED]

    @property
    def strategies(self) -> list[str]:
        """Return the strategies that fit the rewritten script; none where it was refused."""
        if self.rewritten is None:
            return []
        return [name for name in STRATEGIES if all(name in f.strategies for f in self.findings)]

    @property
    def diff(self) -> str:
        """Return a unified diff; empty where nothing changes."""
        if self.rewritten is None:
            return ""
        return "".join(
            difflib.unified_diff(
                self.source.splitlines(keepends=True),
                self.rewritten.splitlines(keepends=True),
                self.path,
                self.path,
            )
        )

    @property
    def num_changed_lines(self) -> int:
        """Count lines that a reader of the diff has to look at: a changed line counts once."""
        if self.rewritten is None:
            return 0
        old, new = (
            [line for line in text.splitlines() if line.strip()]
            for text in (self.source, self.rewritten)
        )
        parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")


class Doubt(SpecError):
    """The analysis cannot tell what the script means; nothing may be rewritten.

    Args:
        finding: What to report instead; always of severity `REFUSED`.
    """

    def __init__(self, finding: ScriptFinding) -> None:
        super().__init__(finding.what)
        self.finding = finding

    def __reduce__(self) -> tuple[type[Doubt], tuple[ScriptFinding]]:
        return Doubt, (self.finding,)


def refuse(line: int, name: str, what: str, why: str, todo: str = "") -> ScriptFinding:
    """Return a finding that prevents rewriting."""
    return ScriptFinding(line, FindingSeverity.REFUSED, name, what, why, todo)
