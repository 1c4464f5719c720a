"""Remove Accelerate from a script, call by call."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from phalanx.adopt.findings import ScriptFinding, refuse
from phalanx.adopt.foreign import Stripping
from phalanx.adopt.script import key_of

_GONE = {"wait_for_everyone", "end_training", "free_memory", "clear"}
_INNER = {"unwrap_model", "gather", "gather_for_metrics", "reduce", "pad_across_processes"}
_NAMES = {
    "is_main_process": "chief",
    "is_local_main_process": "chief",
    "num_processes": "size",
    "process_index": "rank",
    "local_process_index": "rank",
}
_FUNCTIONS = {
    "print": "print",
    "save": "torch.save",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "clip_grad_value_": "torch.nn.utils.clip_grad_value_",
}
_HARMLESS = {
    "cpu",
    "device_placement",
    "split_batches",
    "even_batches",
    "step_scheduler_with_optimizer",
}


def strip_accelerate(work: Stripping, made: list[cst.Call]) -> None:
    """Remove an Accelerator and every use of it, or refuse what has no counterpart."""
    script = work.script
    if len(made) != 1 or not isinstance(script.parent(made[0]), cst.Assign):
        work.findings.append(
            _refused(work, made[0], "Accelerator(...)", "one Accelerator, under one name")
        )
        return
    _check_arguments(work, made[0])
    work.changed(
        made[0],
        "accelerate",
        "Accelerate removed",
        "the session shares out batches and exchanges gradients in its place",
    )
    work.edits.delete(script.statement(made[0]))
    assign = script.parent(made[0])
    assert isinstance(assign, cst.Assign)
    key = key_of(assign.targets[0].target)
    for node in script.find(script.module, cst.Attribute):
        if key is not None and _is_accelerator(key, node.value):
            _use(work, node)
    _imports(work)


def _is_accelerator(key: str, node: cst.BaseExpression) -> bool:
    return key_of(node) in (key, key.removeprefix("self."), f"self.{key}")


def _check_arguments(work: Stripping, made: cst.Call) -> None:
    script = work.script
    for arg in made.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        value = script.code(arg.value).strip("'\"")
        if name in _HARMLESS or (name == "mixed_precision" and value in ("no", "None")):
            continue
        if name == "gradient_accumulation_steps" and value == "1":
            continue
        if name == "mixed_precision":
            work.findings.append(
                refuse(
                    script.line(arg),
                    "mixed-precision",
                    "Accelerate runs the forward pass in mixed precision",
                    "without it the script would train in full precision",
                    'with torch.autocast("cpu", dtype=torch.bfloat16): around forward and loss',
                )
            )
        elif name == "gradient_accumulation_steps":
            work.findings.append(_accumulates(work, arg))
        else:
            work.findings.append(
                _refused(work, arg, f"Accelerator({name or value}=...)", "a plain Accelerator()")
            )


def _accumulates(work: Stripping, node: cst.CSTNode) -> ScriptFinding:
    return refuse(
        work.script.line(node),
        "accelerate-accumulate",
        "Accelerate decides which batches end in an update",
        "its condition is hidden in optimizer.step()",
        "loss / k, and `if (i + 1) % k == 0 or i + 1 == len(loader):` around step and zero_grad",
    )


def _refused(work: Stripping, node: cst.CSTNode, what: str, todo: str) -> ScriptFinding:
    return refuse(
        work.script.line(node),
        "accelerate",
        f"`{what}` has no counterpart",
        "adopt removes Accelerate only where every use is known",
        todo,
    )


def _use(work: Stripping, node: cst.Attribute) -> None:
    script, name = work.script, node.attr.value
    call = script.parent(node)
    is_call = isinstance(call, cst.Call) and call.func is node
    if name in _NAMES:
        work.edits.replace(node, f"{work.session}.{_NAMES[name]}")
    elif name == "device":
        work.edits.replace(node, 'torch.device("cpu")')
    elif is_call and isinstance(call, cst.Call):
        _call(work, call, name)
    else:
        work.findings.append(_refused(work, node, script.code(node), "plain PyTorch in its place"))


def _call(work: Stripping, call: cst.Call, name: str) -> None:
    script, edits = work.script, work.edits
    rules: list[tuple[bool, Callable[[], None]]] = [
        (
            name in _GONE and isinstance(script.parent(call), cst.Expr),
            lambda: edits.delete(script.statement(call)),
        ),
        (name in _INNER and bool(call.args), lambda: edits.unwrap(call, call.args[0].value)),
        (name in _FUNCTIONS, lambda: edits.replace(call.func, _FUNCTIONS[name])),
        (name == "backward" and bool(call.args), lambda: _backward(work, call)),
        (name == "prepare", lambda: _prepare(work, call)),
        (name == "accumulate", lambda: work.findings.append(_accumulates(work, call))),
    ]
    for applies, act in rules:
        if applies:
            act()
            return
    work.findings.append(_refused(work, call, script.code(call.func), "plain PyTorch in its place"))


def _backward(work: Stripping, call: cst.Call) -> None:
    loss = call.args[0].value
    if not isinstance(loss, cst.Name | cst.Attribute | cst.Call):
        work.edits.surround(loss, "(", ")")
    work.edits.unwrap(call, loss, ".backward()")


def _prepare(work: Stripping, call: cst.Call) -> None:
    script = work.script
    assign = script.parent(call)
    given = [script.code(arg.value) for arg in call.args]
    targets: list[str] = []
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        elements = target.elements if isinstance(target, cst.Tuple) else [cst.Element(target)]
        targets = [re.sub(r",$", "", script.code(e.value)) for e in elements]
    if targets == given and targets:
        work.edits.delete(script.statement(call))
    else:
        work.findings.append(
            _refused(
                work,
                call,
                "accelerator.prepare",
                "the same names on both sides: a, b = accelerator.prepare(a, b)",
            )
        )


def _imports(work: Stripping) -> None:
    script = work.script
    for one in script.find(script.module, cst.ImportFrom):
        if (
            one.module is None
            or script.code(one.module) != "accelerate"
            or isinstance(one.names, cst.ImportStar)
        ):
            continue
        names = [alias.evaluated_name for alias in one.names]
        if names == ["Accelerator"]:
            work.edits.delete(script.statement(one))
