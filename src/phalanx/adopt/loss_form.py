"""Tell whether the loss that a script differentiates is a mean or a sum over the batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from phalanx.adopt.findings import Doubt, refuse
from phalanx.adopt.flow import origin
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.script import Scope, ScriptSource, argument, called, key_of, receiver


def _statements(script: ScriptSource, root: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    for assign in script.find(root, cst.Assign):
        if any(script.code(t.target) == name for t in assign.targets):
            yield assign.value
        for target in assign.targets:
            if isinstance(target.target, cst.Tuple):
                names = [script.code(e.value) for e in target.target.elements]
                if name in names:
                    yield assign.value
    for augmented in script.find(root, cst.AugAssign):
        if script.code(augmented.target) == name:
            yield augmented.value


_BATCH_SIZE = re.compile(r"\.size\(0\)|\.shape\[0\]|\blen\(")


class LossForm:
    """Tell whether a loss is a mean or a sum over the batch.

    Args:
        script: The script.
        loop: Its training loop.
    """

    def __init__(self, script: ScriptSource, loop: TrainingLoop) -> None:
        self._script = script
        self._loop = loop
        self._seen: set[int] = set()

    def form(self) -> str:
        """Return "mean" or "sum".

        Raises:
            Doubt: It mixes both, or weighs tokens.
        """
        kinds: set[str] = set()
        line = self._script.line(self._loop.backwards[0])
        for call in self._loop.backwards:
            node = receiver(call)
            assert node is not None
            if call.args and key_of(node) is not None and not argument(call, "retain_graph"):
                text = self._script.code(node)
                if re.search("accel|fabric|engine", text, re.IGNORECASE):
                    node = call.args[0].value
            if isinstance(node, cst.Call) and called(node) == "scale" and node.args:
                node = node.args[0].value
            kinds |= self._kinds(node, self._script.scope(call))
        kinds -= {"constant"}
        if any(
            called(c) == "pack_padded_sequence"
            for c in self._script.find(self._loop.batches, cst.Call)
        ):
            kinds.add("tokens")
        if "tokens" in kinds:
            raise Doubt(
                refuse(
                    line,
                    "token-mean",
                    "the loss is a mean over tokens or weights whose number differs by batch",
                    "workers with fewer tokens would weigh too much",
                    "by hand: session.data(loader, count=lambda batch: number of its tokens)",
                )
            )
        if "sum" in kinds and len(kinds) > 1:
            raise Doubt(
                refuse(
                    line,
                    "mixed-loss",
                    "the loss adds a sum over the batch to terms that are not one",
                    "a sum is added over workers and a mean is averaged; no weight fits both",
                    "all terms as sums or all as means over the batch",
                )
            )
        return "sum" if kinds == {"sum"} else "mean"

    def _kinds(self, node: cst.BaseExpression, scope: Scope) -> set[str]:
        if id(node) in self._seen:
            return set()
        self._seen.add(id(node))
        match node:
            case cst.BinaryOperation(left, cst.Divide(), right):
                return self._quotient(self._kinds(left, scope), right, scope)
            case cst.BinaryOperation(left, cst.Multiply(), right):
                found = self._kinds(left, scope) | self._kinds(right, scope)
                return found - {"constant"} or {"constant"}
            case cst.BinaryOperation(left, _, right):
                return self._kinds(left, scope) | self._kinds(right, scope)
            case cst.UnaryOperation(expression=inner):
                return self._kinds(inner, scope)
            case cst.Call():
                return self._of_call(node, scope)
            case cst.Name(value=name):
                return self._of_name(name, scope)
            case cst.Tuple(elements=elements):
                return set().union(*(self._kinds(e.value, scope) for e in elements))
        return {"constant"}

    def _quotient(self, kinds: set[str], divisor: cst.BaseExpression, scope: Scope) -> set[str]:
        text = self._script.code(divisor)
        if isinstance(divisor, cst.Name):
            values = [self._script.code(v) for v in _statements(self._script, scope, text)]
            text = values[0] if len(values) == 1 else text
        if "sum" not in kinds:
            return kinds
        if re.search(r"\bsum\(|\.sum\(|count|num_tok|ntok|mask", text):
            return {"tokens"}
        return kinds - {"sum"} | {"mean"} if _BATCH_SIZE.search(text) else kinds

    def _of_name(self, name: str, scope: Scope) -> set[str]:
        root = scope if isinstance(scope, cst.FunctionDef) else self._loop.batches
        values = list(_statements(self._script, root, name))
        return set().union(*(self._kinds(v, scope) for v in values)) if values else {"constant"}

    def _of_call(self, call: cst.Call, scope: Scope) -> set[str]:
        script, name, target = self._script, called(call), receiver(call)
        whole = script.code(call)
        if "parameters()" in whole:
            return {"regular"}
        if name in ("mean", "nanmean"):
            return {"mean"}
        if name == "sum":
            if self._over_parameters(call) or name == script.code(call.func):
                return {"regular"} if self._over_parameters(call) else {"mean"}
            is_torch = script.qualified(call).startswith("torch.")
            return {"mean"} if argument(call, "dim", 1 if is_torch else 0) else {"sum"}
        if name in ("norm",) or self._over_parameters(call):
            return {"regular"}
        passes = {
            "view",
            "squeeze",
            "reshape",
            "to",
            "float",
            "item",
            "clone",
            "neg",
            "abs",
            "log",
            "exp",
        }
        if target is not None and name in passes:
            return self._kinds(target, scope)
        for local in script.functions:
            if local.name.value == name and script.class_of(local) is script.class_of(call):
                return self._of_returns(local)
            if local.name.value == name and target is None and script.class_of(local) is None:
                return self._of_returns(local)
        return self._of_criterion(call, scope)

    def _of_criterion(self, call: cst.Call, scope: Scope) -> set[str]:
        script = self._script
        made = origin(script, call.func, scope)
        maker = made.value if made is not None and isinstance(made.value, cst.Call) else call
        assert isinstance(maker, cst.Call)
        for owner in script.classes:
            if owner.name.value == called(maker):
                forward = next(
                    (f for f in script.find(owner, cst.FunctionDef) if f.name.value == "forward"),
                    None,
                )
                if forward is not None and re.search("loss|criterion", owner.name.value, re.I):
                    return self._of_returns(forward)
        if argument(maker, "ignore_index") is not None:
            return {"tokens"}
        reduction = argument(maker, "reduction")
        if reduction is not None and script.code(reduction.value).strip("'\"") == "sum":
            return {"sum"}
        average = argument(maker, "size_average")
        if average is not None and script.code(average.value) == "False":
            return {"sum"}
        return {"mean"}

    def _of_returns(self, function: cst.FunctionDef) -> set[str]:
        found: set[str] = set()
        for one in self._script.find(function, cst.Return):
            if one.value is not None:
                value = one.value
                if isinstance(value, cst.Tuple):
                    value = value.elements[0].value
                found |= self._kinds(value, function)
        return found or {"mean"}

    def _over_parameters(self, call: cst.Call) -> bool:
        """Say whether a call works on a loop variable over `parameters()`."""
        names = {n.value for n in self._script.find(call, cst.Name)}
        for above in self._script.ancestors(call):
            if isinstance(above, cst.For) and "parameters()" in self._script.code(above.iter):
                return bool(
                    names & {n.value for n in self._script.find(above.target, cst.Name)}
                    | names & {self._script.code(above.target)}
                )
        return False
