"""Read how an update is made: accumulation of gradients, clipping, and the form of the loss."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from phalanx.adopt.findings import LOCKSTEP, Doubt, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.parts import SetupCall
from phalanx.adopt.script import ScriptSource, argument, called, receiver


def accumulation(script: ScriptSource, loop: TrainingLoop) -> cst.BaseExpression | None:
    """Return `k` of `if (i + 1) % k == 0: optimizer.step()`; None where every batch is an update.

    Raises:
        Doubt: The step hangs on a condition that is not of this form.
    """
    found: dict[str, cst.BaseExpression] = {}
    for call in _in_body(script, loop, "step"):
        for test in _conditions_of_step(script, loop, call):
            every = _every(script, loop, test)
            if every is not None:
                found[script.code(every)] = every
    if len(found) > 1:
        raise Doubt(_condition(script, loop.batches, " and ".join(found)))
    return next(iter(found.values()), None)


def _in_body(script: ScriptSource, loop: TrainingLoop, name: str) -> list[cst.Call]:
    calls = [c for root in loop.body for c in script.find(root, cst.Call) if called(c) == name]
    if name != "step":
        return calls
    return [c for c in calls if not _steps_schedule(script, c)]


def _steps_schedule(script: ScriptSource, call: cst.Call) -> bool:
    target = receiver(call)
    text = "" if target is None else script.code(target)
    return not re.search(r"opt|scaler|solver|adam|sgd", text, re.IGNORECASE)


def _conditions_of_step(
    script: ScriptSource, loop: TrainingLoop, call: cst.Call
) -> Iterator[cst.If]:
    """Yield conditions around a step that do not hold a backward pass as well."""
    for above in script.ancestors(call):
        if above is loop.batches or isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.If) and not any(
            script.inside(backward, above) for backward in loop.backwards
        ):
            yield above


def _every(
    script: ScriptSource, loop: TrainingLoop, condition: cst.If
) -> cst.BaseExpression | None:
    counter = _counter(script, loop)
    found: cst.BaseExpression | None = None
    for part in _alternatives(condition.test):
        match part:
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(cst.Equal(), right)]):
                if isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Modulo):
                    if script.code(right) != "0" or not _counts_from_one(
                        script, left.left, counter
                    ):
                        raise Doubt(_condition(script, condition, script.code(condition.test)))
                    found = left.right
                elif "len(" not in script.code(part):
                    raise Doubt(_condition(script, condition, script.code(condition.test)))
            case cst.UnaryOperation(cst.Not(), cst.BinaryOperation(left, cst.Modulo(), right)):
                if not _counts_from_one(script, left, counter):
                    raise Doubt(_condition(script, condition, script.code(condition.test)))
                found = right
            case _:
                raise Doubt(_condition(script, condition, script.code(condition.test)))
    return found


def _alternatives(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _counter(script: ScriptSource, loop: TrainingLoop) -> tuple[str, int]:
    """Return the name that counts batches and its first value."""
    head = loop.batches.iter
    while isinstance(head, cst.Call) and called(head) != "enumerate" and head.args:
        head = head.args[0].value
    if not isinstance(head, cst.Call) or not isinstance(loop.batches.target, cst.Tuple):
        return "", 0
    start = argument(head, "start", 1)
    name = script.code(loop.batches.target.elements[0].value)
    return name, int(script.code(start.value)) if start and script.code(
        start.value
    ).isdigit() else 0


def _counts_from_one(
    script: ScriptSource, node: cst.BaseExpression, counter: tuple[str, int]
) -> bool:
    name, start = counter
    text = re.sub(r"[\s()]", "", script.code(node))
    return bool(name) and text in ((name,) if start == 1 else (f"{name}+1", f"1+{name}"))


def _condition(script: ScriptSource, node: cst.CSTNode, text: str) -> ScriptFinding:
    return refuse(
        script.line(node),
        "conditional-step",
        f"the update hangs on `{text}`",
        "every worker has to make the same updates, each after the same number of batches",
        "`if (i + 1) % k == 0 or i + 1 == len(loader):` with i from enumerate(loader), or no "
        "condition",
    )


def passes(script: ScriptSource, loop: TrainingLoop) -> int:
    """Return how many backward passes the script makes of each batch.

    Raises:
        Doubt: That hangs on a loop or a condition.
    """
    for call in loop.backwards:
        if any(
            one is not loop.batches for one in script.loops(call)[:1] if one in _inner(script, loop)
        ):
            raise Doubt(_many_passes(script, call))
    together = [
        call
        for call in loop.backwards
        if not any(_exclude(script, call, other) for other in loop.backwards if other is not call)
    ]
    if len(together) > 1 and any(
        script.parent(script.statement(c)) is not script.parent(script.statement(together[0]))
        for c in together
    ):
        raise Doubt(_many_passes(script, together[1]))
    return max(len(together), 1)


def _inner(script: ScriptSource, loop: TrainingLoop) -> list[cst.CSTNode]:
    return [
        one
        for root in loop.body
        for kind in (cst.For, cst.While)
        for one in script.find(root, kind)
    ]


def _exclude(script: ScriptSource, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Say whether two nodes are in different branches of one condition."""
    for above in script.ancestors(one):
        if isinstance(above, cst.If) and script.inside(other, above):
            return script.inside(one, above.body) != script.inside(other, above.body)
    return False


def _many_passes(script: ScriptSource, node: cst.CSTNode) -> ScriptFinding:
    return refuse(
        script.line(node),
        "many-passes",
        "a number of backward passes per batch that cannot be read off",
        "the exchange takes place in the last of them",
        "one backward() per batch of the sum of the losses",
    )


def clipping(
    script: ScriptSource, loop: TrainingLoop, setups: list[SetupCall]
) -> Iterator[tuple[cst.Call, cst.BaseExpression | None]]:
    """Yield calls that clip gradient norms, each with the norm if setup can do it instead."""
    steps = _in_body(script, loop, "step")
    for call in (
        *_in_body(script, loop, "clip_grad_norm_"),
        *_in_body(script, loop, "clip_grad_norm"),
    ):
        norm = argument(call, "max_norm", 1)
        statement = script.statement(call)
        fits = (
            len(setups) == 1
            and len(setups[0].models) == 1
            and len(call.args) == 2
            and norm is not None
            and isinstance(statement, cst.SimpleStatementLine)
            and len(statement.body) == 1
            and isinstance(statement.body[0], cst.Expr)
            and statement.body[0].value is call
            and script.code(call.args[0].value).endswith(".parameters()")
            and script.root(call.args[0].value) not in ("accelerator",)
            and not any("scaler" in script.code(c).lower() for c in steps)
            and any(_same_block(script, statement, c) for c in steps)
        )
        yield call, norm.value if fits and norm is not None else None


def _same_block(script: ScriptSource, statement: cst.CSTNode, call: cst.Call) -> bool:
    return script.parent(statement) is script.parent(script.statement(call))


def touched_gradients(script: ScriptSource, loop: TrainingLoop) -> ScriptFinding | None:
    """Report code between backward and step that changes gradients."""
    for root in loop.body:
        for name in ("clip_grad_value_", "unscale_"):
            for call in script.find(root, cst.Call):
                if called(call) == name:
                    return _touched(script, call)
        for augmented in script.find(root, cst.AugAssign):
            if re.search(r"\.grad\b", script.code(augmented.target)):
                return _touched(script, augmented)
        for call in script.find(root, cst.Call):
            text = script.code(call.func)
            if re.search(r"\.grad(\.data)?\.\w+_$", text) and not text.endswith("zero_"):
                return _touched(script, call)
    return None


def _touched(script: ScriptSource, node: cst.CSTNode) -> ScriptFinding:
    return ScriptFinding(
        script.line(node),
        FindingSeverity.NOTE,
        "gradients-touched",
        f"`{script.code(node).splitlines()[0]}` changes gradients after backward()",
        "right where each worker holds the exchanged gradients; parameter servers get them earlier",
        strategies=LOCKSTEP,
    )


def extra_names(script: ScriptSource, setup: SetupCall) -> list[str]:
    """Return variables beside the optimiser whose state is part of the training."""
    line = script.line(setup.after)
    return [
        key
        for key, bindings in script.bindings.items()
        if any(
            b.scope is setup.scope
            and script.line(b.statement) <= line
            and b.index is None
            and isinstance(b.value, cst.Call)
            and _has_state(key, b.value)
            for b in bindings
        )
    ]


def _has_state(key: str, made: cst.Call) -> bool:
    if called(made) in ("GradScaler", "AveragedModel"):
        return True
    return called(made) == "deepcopy" and bool(re.search("ema|averag", key, re.IGNORECASE))
