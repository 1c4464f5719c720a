"""Follow names to where they are made: through assignments, parameters, attributes and calls.

Works on one file and by names only. Where two answers are possible, there is none: callers refuse
the script instead of guessing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from phalanx.adopt.findings import Doubt, refuse
from phalanx.adopt.script import (
    Binding,
    Loop,
    Scope,
    ScriptSource,
    argument,
    called,
    key_of,
    receiver,
)

_PASS_THROUGH = {"to", "cuda", "cpu", "train", "eval", "float", "double", "half", "compile"}
_WRAPPERS = {
    "DataParallel",
    "DistributedDataParallel",
    "DDP",
    "compile",
    "prepare",
    "BackgroundGenerator",
}
_EVALUATION = re.compile(r"val|test|eval|dev", re.IGNORECASE)
_MAX_DEPTH = 12


@dataclass(frozen=True)
class Origin:
    """Where a variable is made.

    Attributes:
        key: Its name there.
        scope: Function or module there.
        makers: Bindings that make the object: one, or one per branch of a condition.
        bindings: All bindings of the name in that scope, those that only move or wrap it included.
    """

    key: str
    scope: Scope
    makers: tuple[Binding, ...]
    bindings: tuple[Binding, ...]

    @property
    def value(self) -> cst.BaseExpression | None:
        """Return the expression that makes the object, the first of several."""
        return self.makers[0].value


@dataclass(frozen=True)
class Frame:
    """One function on the way from the module to a node.

    Attributes:
        scope: The function, or the module.
        node: The node itself, or the call that leads towards it.
        loops: Loops around `node` in this function, innermost first.
    """

    scope: Scope
    node: cst.CSTNode
    loops: list[Loop]


def call_sites(script: ScriptSource, function: cst.FunctionDef) -> list[cst.Call]:
    """Return the calls of a function of this file."""
    name = function.name.value
    owner = script.class_of(function)
    if owner is None or script.scope(function) is not script.module:
        return [c for c in script.calls if isinstance(c.func, cst.Name) and c.func.value == name]
    if name == "__init__":
        return [
            c
            for c in script.calls
            if isinstance(c.func, cst.Name) and c.func.value == owner.name.value
        ]
    found = []
    for call in script.calls:
        target = receiver(call)
        if target is None or called(call) != name:
            continue
        if key_of(target) == "self":
            if script.class_of(call) is owner:
                found.append(call)
        elif _is_instance(script, target, owner.name.value, script.scope(call)):
            found.append(call)
    return found


def _is_instance(script: ScriptSource, node: cst.BaseExpression, owner: str, scope: Scope) -> bool:
    if isinstance(node, cst.Call):
        return called(node) == owner
    key = key_of(node)
    return key is not None and any(
        isinstance(b.value, cst.Call) and called(b.value) == owner
        for b in lookup(script, key, scope)
    )


def lookup(script: ScriptSource, key: str, scope: Scope) -> list[Binding]:
    """Return the bindings of a name that a scope sees; none for parameters and imports."""
    every = script.bindings.get(key, [])
    if key.startswith("self."):
        owner = script.class_of(scope)
        return [b for b in every if script.class_of(b.statement) is owner]
    while isinstance(scope, cst.FunctionDef):
        own = [b for b in every if b.scope is scope]
        if own or key in script.parameters(scope):
            return own
        scope = script.scope(scope)
    found = [b for b in every if b.scope is script.module]
    return found or [b for b in every if _is_global(script, key, b.scope)]


def _is_global(script: ScriptSource, key: str, scope: Scope) -> bool:
    return any(
        item.name.value == key for one in script.find(scope, cst.Global) for item in one.names
    )


def parameter_owner(script: ScriptSource, key: str, scope: Scope) -> cst.FunctionDef | None:
    """Return the function of which a name is a parameter, if it is one."""
    while isinstance(scope, cst.FunctionDef):
        if key in script.parameters(scope):
            return scope
        if any(b.scope is scope for b in script.bindings.get(key, [])):
            return None
        scope = script.scope(scope)
    return None


def passed(
    script: ScriptSource, function: cst.FunctionDef, name: str, call: cst.Call
) -> cst.Arg | None:
    """Return what a call passes for a parameter; None where the default holds or stars hide it."""
    names = script.parameters(function)
    position = names.index(name)
    if script.class_of(function) is not None and names[:1] == ["self"]:
        position -= 1
    if any(arg.star for arg in call.args):
        return argument(call, name)
    return argument(call, name, position)


def origin(
    script: ScriptSource, node: cst.CSTNode, scope: Scope, *, _depth: int = 0
) -> Origin | None:
    """Follow a variable to where its object is made; None where that cannot be told."""
    key = key_of(node)
    if key is None or _depth > _MAX_DEPTH:
        return None
    found = lookup(script, key, scope)
    owner = parameter_owner(script, key, scope)
    if owner is not None and not _makers(found):
        return _of_argument(script, owner, key, _depth)
    makers = _makers(found)
    if not makers:
        return None
    if len(makers) == 1 and makers[0].value is not None and makers[0].index is None:
        inner = passed_through(makers[0].value)
        if inner is not None and key_of(inner) not in (None, key):
            further = origin(script, inner, makers[0].scope, _depth=_depth + 1)
            if further is not None:
                return further
    if len({id(one.scope) for one in makers}) > 1:
        return None
    home = makers[0].scope
    return Origin(key, home, tuple(makers), tuple(b for b in found if b.scope is home))


def _of_argument(
    script: ScriptSource, function: cst.FunctionDef, name: str, depth: int
) -> Origin | None:
    given: dict[str, tuple[cst.BaseExpression, Scope]] = {}
    for call in call_sites(script, function):
        arg = passed(script, function, name, call)
        if arg is not None and script.code(arg.value) != "None":
            where = script.scope(call)
            given[f"{script.code(arg.value)} {id(where)}"] = (arg.value, where)
    if len(given) > 1:
        # The same function may also evaluate: its training call is the one that says so.
        given = {k: v for k, v in given.items() if not _EVALUATION.search(script.code(v[0]))}
    if len(given) != 1:
        return None
    ((value, where),) = given.values()
    return origin(script, value, where, _depth=depth + 1)


def _makers(bindings: Iterable[Binding]) -> list[Binding]:
    return [
        b
        for b in bindings
        if b.value is not None
        and not (isinstance(b.value, cst.Name) and b.value.value == "None")
        and not _moves_itself(b)
    ]


def _moves_itself(binding: Binding) -> bool:
    assert binding.value is not None
    if isinstance(binding.value, cst.Call) and called(binding.value) == "prepare":
        return True
    inner = passed_through(binding.value)
    return inner is not None and key_of(inner) == binding.key


def passed_through(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return `x` of `x`, `x.to(device)`, `DataParallel(x)` and the like; None for others."""
    if key_of(value) is not None:
        return value
    if not isinstance(value, cst.Call):
        return None
    inside = receiver(value)
    if called(value) in _PASS_THROUGH and inside is not None and called(value) != "compile":
        return passed_through(inside)
    if called(value) in _WRAPPERS and value.args and not value.args[0].star:
        return passed_through(value.args[0].value)
    return None


def _refuse_ranked(script: ScriptSource, function: cst.FunctionDef) -> None:
    """Refuse a function that some launcher calls once per process."""
    ranks = {"rank", "local_rank", "gpu", "gpu_id", "world_size"} & {*script.parameters(function)}
    if ranks:
        raise Doubt(
            refuse(
                script.line(function),
                "reads-rank",
                f"a launcher calls {function.name.value}({min(ranks)}, ...) once per process",
                "`phalanx launch` runs the script itself in every worker",
                "call it once from the script, with session.rank and session.size",
            )
        )


def frames(script: ScriptSource, node: cst.CSTNode) -> list[Frame]:
    """Return the way from a node out to the module, or to a function that nobody calls here.

    Raises:
        Doubt: A function on the way is called from places with different loops.
    """
    way = [Frame(script.scope(node), node, script.loops(node))]
    seen: list[Scope] = []
    while isinstance(way[-1].scope, cst.FunctionDef) and way[-1].scope not in seen:
        function = way[-1].scope
        seen.append(function)
        sites = [c for c in call_sites(script, function) if not script.inside(c, function)]
        if not sites:
            _refuse_ranked(script, function)
            break
        places = {(id(script.scope(c)), tuple(map(id, script.loops(c)))) for c in sites}
        if len(places) > 1:
            lines = ", ".join(str(script.line(c)) for c in sites)
            raise Doubt(
                refuse(
                    script.line(function),
                    "several-trainings",
                    f"{function.name.value}() trains and is called from lines {lines}",
                    "a session feeds one training loop and counts its epochs",
                    "leave one of the calls, or one script per training",
                )
            )
        call = sites[0]
        way.append(Frame(script.scope(call), call, script.loops(call)))
    return way
