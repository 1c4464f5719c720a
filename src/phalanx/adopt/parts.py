"""Find what `session.setup` is given: models, optimisers, schedulers, and where the line goes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from phalanx.adopt.anchor import last_of
from phalanx.adopt.findings import Doubt, ScriptFinding, refuse
from phalanx.adopt.flow import Origin, call_sites, lookup, origin, parameter_owner, passed
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.script import Binding, Scope, ScriptSource, called, key_of, receiver

_SCHEDULER = re.compile(r"sched|warmup|annealing|plateau|lr$", re.IGNORECASE)
_OPTIMIZER = re.compile(r"opt|adam|sgd|solver", re.IGNORECASE)
_MODEL = re.compile(r"model|net|module|encoder|decoder|generator|discriminator", re.IGNORECASE)

_STATEFUL = {"GradScaler", "AveragedModel"}


@dataclass
class SetupCall:
    """One `session.setup(...)` to be written.

    Attributes:
        optimizer: Where the optimiser is made.
        models: Names of the networks whose parameters it holds, as seen there.
        schedulers: Names of its schedulers, as seen there.
        schedulers_elsewhere: Line of a scheduler that cannot be named there; 0 for none.
        scope: Function that gets the line.
        after: Statement after which it goes.
    """

    optimizer: Origin
    models: list[str]
    schedulers: list[str]
    schedulers_elsewhere: int
    scope: Scope
    after: cst.CSTNode


def find_setups(script: ScriptSource, loop: TrainingLoop) -> list[SetupCall]:
    """Find the optimisers that the loop steps, each with its networks and schedulers.

    Raises:
        Doubt: One of them cannot be traced to one place before the loop.
    """
    optimizers = _stepped(script, loop)
    if not optimizers:
        raise Doubt(
            refuse(
                script.line(loop.batches),
                "no-optimizer",
                "no optimiser step in the training loop that this file shows",
                "the session exchanges gradients for an optimiser that it was given",
                "call optimizer.step() of a torch.optim optimiser in the loop over batches",
            )
        )
    setups = [_setup_of(script, loop, one) for one in optimizers]
    named = [name for one in setups for name in one.models]
    if len(set(named)) < len(named):
        raise Doubt(
            refuse(
                script.line(setups[-1].optimizer.makers[0].statement),
                "shared-parameters",
                "two optimisers update the same network",
                "a session exchanges each parameter for one optimiser",
                "one optimiser per network, or one with several parameter groups",
            )
        )
    if len({id(one.scope) for one in setups}) == 1:
        together = last_of(script, [one.after for one in setups], setups[0].scope, loop)
        for one in setups:
            one.after = together
    return setups


def _stepped(script: ScriptSource, loop: TrainingLoop) -> list[Origin]:
    found: dict[tuple[str, int], Origin] = {}
    for call in (c for root in loop.body for c in script.find(root, cst.Call)):
        if called(call) != "step" or receiver(call) is None:
            continue
        node = _optimizer_of_step(script, call)
        if node is None:
            continue
        made = origin(script, node, script.scope(call))
        if made is None:
            raise Doubt(_untraceable(script, node, "optimiser"))
        if _is_scheduler(script, made):
            continue
        if call.args and receiver(call) is node:
            raise Doubt(
                refuse(
                    script.line(call),
                    "closure",
                    f"`{script.code(call)}` computes gradients inside the step",
                    "gradients are exchanged during backward(), before the step",
                    "zero_grad, forward, backward and step as four lines of the loop",
                )
            )
        found.setdefault((made.key, id(made.scope)), made)
    return list(found.values())


def _optimizer_of_step(script: ScriptSource, call: cst.Call) -> cst.BaseExpression | None:
    target = receiver(call)
    if target is None or key_of(target) is None:
        # optimizers[i].step() and the like are refused with the optimiser's own finding.
        return None
    made = origin(script, target, script.scope(call))
    if made is not None and isinstance(made.value, cst.Call):
        name = script.qualified(made.value)
        if "GradScaler" in name and call.args:
            return call.args[0].value
        if name.startswith("torch.optim"):
            return target
    text = script.code(target)
    if re.search("scaler", text, re.IGNORECASE) and call.args:
        return call.args[0].value
    if _SCHEDULER.search(text) or not _OPTIMIZER.search(text):
        return None
    return target


def _is_scheduler(script: ScriptSource, made: Origin) -> bool:
    if not isinstance(made.value, cst.Call):
        return False
    name = script.qualified(made.value)
    return "lr_scheduler" in name or bool(_SCHEDULER.search(name.split(".")[-1]))


def _untraceable(script: ScriptSource, node: cst.CSTNode, what: str) -> ScriptFinding:
    return refuse(
        script.line(node),
        "untraceable",
        f"cannot see where the {what} `{script.code(node)}` is made",
        "session.setup has to follow the place where model and optimiser are made",
        f"make the {what} once, under one name, before the loop over epochs",
    )


def _setup_of(script: ScriptSource, loop: TrainingLoop, made: Origin) -> SetupCall:
    models = _models_of(script, made)
    schedulers, elsewhere = _schedulers_of(script, made)
    scalers = [
        key
        for key, bindings in script.bindings.items()
        if any(isinstance(b.value, cst.Call) and called(b.value) in _STATEFUL for b in bindings)
    ]
    names = [made.key, *schedulers, *models, *scalers]
    before = _first_training_line(script, loop, made.scope)
    statements = [
        b.statement
        for name in names
        for b in script.bindings.get(name, [])
        if b.scope is made.scope and (before is None or script.line(b.statement) < before)
    ]
    late = next(
        (b for b in made.bindings if before is not None and script.line(b.statement) >= before),
        None,
    )
    if late is not None:
        raise Doubt(
            refuse(
                script.line(late.statement),
                "optimizer-changes",
                f"`{made.key}` is made anew during the training",
                "the session and its servers hold the state of one optimiser",
                "one optimiser; change its learning rate by a scheduler",
            )
        )
    after = last_of(script, statements, made.scope, loop)
    return SetupCall(made, models, schedulers, elsewhere, made.scope, after)


def _first_training_line(script: ScriptSource, loop: TrainingLoop, scope: Scope) -> int | None:
    """Return the line in a scope from which on the training runs; None where it runs elsewhere."""
    for frame in loop.frames:
        if frame.scope is scope:
            return min(script.line(one) for one in (frame.node, *frame.loops))
    return None


def _models_of(script: ScriptSource, made: Origin) -> list[str]:
    found: list[list[str]] = [_models_in(script, binding) for binding in made.makers]
    if any(names != found[0] for names in found) or not found[0]:
        raise Doubt(
            refuse(
                script.line(made.makers[0].statement),
                "unknown-parameters",
                f"cannot see whose parameters `{made.key}` updates",
                "session.setup(model, optimizer) has to name the network",
                "torch.optim.X(model.parameters(), ...) in one place",
            )
        )
    return found[0]


def _models_in(script: ScriptSource, binding: Binding) -> list[str]:
    if binding.value is None:
        return []
    names: list[str] = []
    for node in _with_named_arguments(script, binding):
        for call in (c for c in _calls_in(script, node) if called(c).endswith("parameters")):
            target = receiver(call)
            key = None if target is None else _inner_key(target)
            if key == "self":
                raise Doubt(_inside_module(script, call))
            if key is not None and key not in names:
                names.append(key)
    return _known(script, names, binding.scope) or _models_of_helper(script, binding)


def _known(script: ScriptSource, names: list[str], scope: Scope) -> list[str]:
    """Keep names that the scope itself can see, not those of a comprehension."""
    return [
        n
        for n in names
        if lookup(script, n, scope) or parameter_owner(script, n, scope) is not None
    ]


def _inside_module(script: ScriptSource, call: cst.Call) -> ScriptFinding:
    return refuse(
        script.line(call),
        "optimizer-per-layer",
        "an optimiser of the module's own, `self.parameters()`",
        "layers that update themselves have no common gradient to exchange and no common step",
        "one optimiser over the parameters of the whole model, stepped once per batch",
    )


def _with_named_arguments(script: ScriptSource, binding: Binding) -> list[cst.CSTNode]:
    """Return a maker's expression, and those behind its names that mention parameters."""
    assert binding.value is not None
    nodes: list[cst.CSTNode] = [binding.value]
    for name in {n.value for n in script.find(binding.value, cst.Name)}:
        nodes += [
            b.value
            for b in lookup(script, name, binding.scope)
            if b.value is not None and "parameters()" in script.code(b.value)
        ]
    return nodes


def _calls_in(script: ScriptSource, node: cst.CSTNode) -> Iterable[cst.Call]:
    if isinstance(node, cst.Call):
        yield node
    yield from script.find(node, cst.Call)


def _inner_key(node: cst.BaseExpression) -> str | None:
    """Return `encoder` of `encoder.linear`, `self.net` of `self.net.fc`."""
    while key_of(node) is None and isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return key_of(node)


def _models_of_helper(script: ScriptSource, binding: Binding) -> list[str]:
    """Name the model of `optimizer = build_optimizer(args, model)`, if exactly one fits."""
    assert binding.value is not None
    if not isinstance(binding.value, cst.Call) or called(binding.value) in ("list", "dict"):
        return []
    if script.qualified(binding.value).startswith("torch.optim."):
        return []
    helper = _helper(script, binding.value)
    if helper is not None and (inside := _models_in_helper(script, helper, binding.value)):
        return inside
    target = receiver(binding.value)
    candidates = [target] if target is not None else []
    candidates += [arg.value for arg in binding.value.args]
    names = [key_of(node) for node in candidates]
    if binding.index is not None:
        names += [
            b.key
            for every in script.bindings.values()
            for b in every
            if b.statement is binding.statement and b.key != binding.key
        ]
    fitting = {
        n for n in names if n is not None and n != "self" and _is_module(script, n, binding.scope)
    }
    return list(fitting) if len(fitting) == 1 else []


def _helper(script: ScriptSource, call: cst.Call) -> cst.FunctionDef | None:
    """Return the function of this file that a call calls, if there is one."""
    return next(
        (f for f in script.functions if any(c is call for c in call_sites(script, f))), None
    )


def _models_in_helper(script: ScriptSource, helper: cst.FunctionDef, call: cst.Call) -> list[str]:
    """Name the networks whose parameters a helper takes, as its caller knows them."""
    names: list[str] = []
    for inner in (c for c in script.find(helper, cst.Call) if called(c).endswith("parameters")):
        target = receiver(inner)
        key = None if target is None else _inner_key(target)
        if key is None or key == "self":
            return []
        if not key.startswith("self."):
            if key not in script.parameters(helper):
                return []
            arg = passed(script, helper, key, call)
            key = None if arg is None else key_of(arg.value)
        if key is None:
            return []
        if key not in names:
            names.append(key)
    return names


def _is_module(script: ScriptSource, key: str, scope: Scope) -> bool:
    if not lookup(script, key, scope) and parameter_owner(script, key, scope) is None:
        return False
    used = any(
        key_of(c.func) == key
        or (called(c) in ("train", "eval", "parameters", "state_dict") and _is(receiver(c), key))
        for c in script.calls
    )
    return used and bool(_MODEL.search(key))


def _is(node: cst.BaseExpression | None, key: str) -> bool:
    return node is not None and key_of(node) == key


def _schedulers_of(script: ScriptSource, optimizer: Origin) -> tuple[list[str], int]:
    """Return names of schedulers beside the optimiser, and the line of one made elsewhere."""
    here: list[str] = []
    elsewhere = 0
    for every in script.bindings.values():
        for b in every:
            if not isinstance(b.value, cst.Call) or b.index is not None:
                continue
            name = script.qualified(b.value).split(".")[-1]
            qualified = "lr_scheduler" in script.qualified(b.value)
            if not qualified and not _SCHEDULER.search(name):
                continue
            takes = any(_same(script, arg.value, b.scope, optimizer) for arg in b.value.args)
            if not takes:
                continue
            if b.scope is optimizer.scope and b.key not in here:
                here.append(b.key)
            elif b.scope is not optimizer.scope:
                elsewhere = script.line(b.statement)
    used = {
        key_of(target)
        for c in script.calls
        if called(c) == "step" and (target := receiver(c)) is not None
    }
    # Inner schedulers of a chain are stepped by the outer one.
    stepped = [key for key in here if key in used]
    return (stepped or here[-1:]), elsewhere


def _same(script: ScriptSource, node: cst.BaseExpression, scope: Scope, wanted: Origin) -> bool:
    if key_of(node) is None:
        return False
    made = origin(script, node, scope)
    return made is not None and (made.key, made.scope) == (wanted.key, wanted.scope)
