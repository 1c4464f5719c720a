"""Let the session count epochs: `range(n)` becomes `session.epochs(n)`."""

from __future__ import annotations

import re

import libcst as cst

from phalanx.adopt.edits import Edits
from phalanx.adopt.findings import Doubt, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.loops import range_of
from phalanx.adopt.script import ScriptSource


def count_epochs(script: ScriptSource, loop: cst.For, edits: Edits, session: str) -> ScriptFinding:
    """Rewrite the header of the loop over epochs, and keep the numbers that the script sees.

    Raises:
        Doubt: The range has a step, or its start changes during the training.
    """
    span = range_of(script, loop)
    assert span is not None
    plain = [arg for arg in span.args if arg.keyword is None]
    if len(plain) > 2 or not plain:
        raise Doubt(
            refuse(
                script.line(loop),
                "epoch-range",
                f"`{script.code(span)}` counts epochs in steps",
                "session.epochs(n) counts n epochs from 0",
                "range(n) or range(first, last)",
            )
        )
    if not isinstance(loop.body, cst.IndentedBlock):
        raise Doubt(
            refuse(
                script.line(loop),
                "shared-line",
                "several statements in one line",
                "a line has to be inserted here",
                "one statement per line",
            )
        )
    end = plain[-1].value
    start = plain[0].value if len(plain) == 2 else None
    if start is None or script.code(start) == "0":
        edits.replace(span, f"{session}.epochs({script.code(end)})")
    else:
        edits.replace(span, f"{session}.epochs({_difference(script, end, start)})")
        if _is_used(script, loop):
            if not isinstance(loop.target, cst.Name):
                raise Doubt(
                    refuse(
                        script.line(loop),
                        "epoch-range",
                        f"`{script.code(loop.iter)}` counts epochs twice",
                        "session.epochs(n) counts n epochs from 0",
                        "range(n) or range(first, last)",
                    )
                )
            _refuse_moving(script, loop, start)
            shift = f"{script.code(loop.target)} += {script.code(start)}"
            edits.insert_before(loop.body.body[0], shift)
    return ScriptFinding(
        script.line(loop),
        FindingSeverity.CHANGED,
        "epochs",
        "the session counts the epochs",
        "a resumed run starts where it stopped",
    )


def _difference(script: ScriptSource, end: cst.BaseExpression, start: cst.BaseExpression) -> str:
    last, first = script.code(end), script.code(start)
    if isinstance(end, cst.BinaryOperation) and isinstance(end.operator, cst.Add):
        left, right = script.code(end.left), script.code(end.right)
        if right == first and "\n" not in left:
            return left
        if left == first and "\n" not in right:
            return right
    if last.isdigit() and first.isdigit():
        return str(int(last) - int(first))
    is_sum = isinstance(end, cst.BinaryOperation) and isinstance(
        end.operator, cst.Add | cst.Subtract | cst.Multiply
    )
    simple = (
        isinstance(end, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer) or is_sum
    )
    atom = isinstance(start, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer)
    return f"{last if simple else f'({last})'} - {first if atom else f'({first})'}"


def _is_used(script: ScriptSource, loop: cst.For) -> bool:
    name = script.code(loop.target)
    uses = [
        n for n in script.find(script.module, cst.Name) if n.value == name and n is not loop.target
    ]
    return name != "_" and bool(uses)


def _refuse_moving(script: ScriptSource, loop: cst.For, start: cst.BaseExpression) -> None:
    """Refuse a start that is not the same in every epoch."""
    if isinstance(start, cst.Integer):
        return
    text = re.escape(script.code(start))
    root = script.root(start)
    globals_ = {i.name.value for one in script.find(script.module, cst.Global) for i in one.names}
    moved = (
        root in globals_
        or any(
            re.fullmatch(text, script.code(t.target))
            for assign in script.find(loop.body, cst.Assign)
            for t in assign.targets
        )
        or any(
            re.fullmatch(text, script.code(a.target)) for a in script.find(loop.body, cst.AugAssign)
        )
    )
    if moved or not isinstance(start, cst.Name | cst.Attribute):
        raise Doubt(
            refuse(
                script.line(loop),
                "epoch-range",
                f"the first epoch `{script.code(start)}` may change during the training",
                "epoch numbers have to be the same on every worker",
                "a name that is set once before the loop",
            )
        )
