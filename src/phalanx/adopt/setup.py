"""Write `session.setup(...)` with the arguments that stand for lines of the loop."""

from __future__ import annotations

import libcst as cst

from phalanx.adopt.edits import Edits
from phalanx.adopt.findings import LOCKSTEP, Doubt, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.flow import lookup, parameter_owner, passed
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.parts import SetupCall
from phalanx.adopt.script import ScriptSource
from phalanx.adopt.update import clipping, extra_names, passes


def write_setups(
    script: ScriptSource,
    loop: TrainingLoop,
    setups: list[SetupCall],
    edits: Edits,
    session: str,
    *,
    every: cst.BaseExpression | None,
    form: str,
) -> list[ScriptFinding]:
    """Insert one line per optimiser and return what was changed.

    Raises:
        Doubt: An argument cannot be named where the line goes.
    """
    findings: list[ScriptFinding] = []
    options: list[str] = []
    if every is not None:
        if len(setups) > 1:
            raise Doubt(
                refuse(
                    script.line(every),
                    "conditional-step",
                    "accumulation with several optimisers",
                    "the session exchanges in each step() and cannot tell whose pass is whose",
                    "one optimiser, or an update per batch",
                )
            )
        options.append(f"accumulate={_visible(script, loop, every, setups[0])}")
        findings.append(
            ScriptFinding(
                script.line(every),
                FindingSeverity.CHANGED,
                "accumulate",
                f"{script.code(every)} batches make an update",
                "gradients are exchanged once per update",
            )
        )
    clips, more = _clip(script, loop, setups, edits)
    options += clips
    findings += more
    if form == "sum":
        options.append('loss="sum"')
        findings.append(
            ScriptFinding(
                script.line(loop.backwards[0]),
                FindingSeverity.CHANGED,
                "sum-loss",
                "the loss is a sum over the batch",
                "sums of workers are added, means are averaged",
            )
        )
    if len(setups) == 1 and (count := passes(script, loop)) > 1:
        options.append(f"passes={count}")
    for setup in setups:
        findings += _write(script, setup, edits, session, options)
    return findings


def _write(
    script: ScriptSource, setup: SetupCall, edits: Edits, session: str, options: list[str]
) -> list[ScriptFinding]:
    findings = [
        ScriptFinding(
            script.line(setup.after),
            FindingSeverity.CHANGED,
            "setup",
            f"`{setup.optimizer.key}` is given to the session",
            "it exchanges gradients in backward() and takes part in step()",
        )
    ]
    extra = extra_names(script, setup)
    if len(setup.schedulers) > 1 or setup.schedulers_elsewhere:
        line = setup.schedulers_elsewhere or script.line(setup.after)
        findings.append(
            ScriptFinding(
                line,
                FindingSeverity.NOTE,
                "schedulers",
                "a scheduler that session.setup does not get",
                "right where each worker steps it; servers follow one scheduler, that of setup",
                strategies=LOCKSTEP,
            )
        )
        extra += setup.schedulers[1:]
    findings += _plateau(script, setup)
    model = setup.models[0] if len(setup.models) == 1 else _together(script, setup)
    given = [model, setup.optimizer.key, *setup.schedulers[:1], *options]
    if extra:
        inside = ", ".join(f'"{key.removeprefix("self.")}": {key}' for key in dict.fromkeys(extra))
        given.append(f"extra={{{inside}}}")
    edits.insert_after(setup.after, f"{session}.setup({', '.join(given)})")
    return findings


def _together(script: ScriptSource, setup: SetupCall) -> str:
    """Return an expression that holds several networks of one optimiser."""
    for call in script.calls:
        name = script.code(call.func)
        if script.qualified(call) == f"torch.nn.{name.split('.')[-1]}" and "." in name:
            prefix = name.rsplit(".", 1)[0]
            return f"{prefix}.ModuleList([{', '.join(setup.models)}])"
    return f"torch.nn.ModuleList([{', '.join(setup.models)}])"


def _plateau(script: ScriptSource, setup: SetupCall) -> list[ScriptFinding]:
    for key in setup.schedulers:
        for binding in script.bindings[key]:
            if binding.value is not None and "ReduceLROnPlateau" in script.code(binding.value):
                return [
                    ScriptFinding(
                        script.line(binding.statement),
                        FindingSeverity.NOTE,
                        "plateau",
                        "ReduceLROnPlateau follows a measured value",
                        "the value has to be the same on all workers: measured on all of the "
                        "validation set, or returned by session.report",
                        strategies=LOCKSTEP,
                    )
                ]
    return []


def _clip(
    script: ScriptSource, loop: TrainingLoop, setups: list[SetupCall], edits: Edits
) -> tuple[list[str], list[ScriptFinding]]:
    options: list[str] = []
    findings: list[ScriptFinding] = []
    for call, norm in clipping(script, loop, setups):
        try:
            text = None if norm is None or options else _visible(script, loop, norm, setups[0])
        except Doubt:
            text = None
        if text is None:
            findings.append(
                ScriptFinding(
                    script.line(call),
                    FindingSeverity.NOTE,
                    "clip",
                    "gradients are clipped by the script",
                    "right where each worker holds the exchanged gradients",
                    "session.setup(..., clip_norm=...) in its place, for parameter servers",
                    LOCKSTEP,
                )
            )
            continue
        options.append(f"clip_norm={text}")
        edits.delete(script.statement(call))
        findings.append(
            ScriptFinding(
                script.line(call),
                FindingSeverity.CHANGED,
                "clip",
                "clipping moves to session.setup",
                "the norm is that of the exchanged gradient, wherever the update is made",
            )
        )
    return options, findings


def _visible(
    script: ScriptSource, loop: TrainingLoop, node: cst.BaseExpression, setup: SetupCall
) -> str:
    """Return an expression of the loop as it reads at the place of setup.

    Raises:
        Doubt: A name in it means something else there, or is not known yet.
    """
    text = script.code(node)
    names = {n.value for n in script.find(node, cst.Name)}
    if isinstance(node, cst.Name):
        names.add(node.value)
    if isinstance(node, cst.Attribute):
        names = {script.root(node) or ""}
    scope = script.scope(node)
    for name in names - {"int", "float", "max", "min", "len"}:
        if not _means_the_same(script, loop, name, scope, setup):
            raise Doubt(
                refuse(
                    script.line(node),
                    "not-visible",
                    f"`{text}` is not known where model and optimiser are made",
                    "session.setup has to be told before the loop",
                    "make it a constant of the module or of args",
                )
            )
    return text


def _means_the_same(
    script: ScriptSource, loop: TrainingLoop, name: str, scope: object, setup: SetupCall
) -> bool:
    here = script.scope(setup.after)
    frame = next((f for f in loop.frames if f.scope is scope), None)
    while frame is not None and frame.scope is not here:
        owner = parameter_owner(script, name, frame.scope)
        if owner is not frame.scope or not isinstance(frame.scope, cst.FunctionDef):
            break
        outer = loop.frames[loop.frames.index(frame) + 1] if frame is not loop.frames[-1] else None
        if outer is None or not isinstance(outer.node, cst.Call):
            return False
        arg = passed(script, frame.scope, name, outer.node)
        if arg is None or script.code(arg.value) != name:
            return False
        frame = outer
    if name == "self":
        return script.class_of(here) is not None
    line = script.line(setup.after)
    if parameter_owner(script, name, here) is not None:
        return frame is not None and frame.scope is here
    found = lookup(script, name, here)
    if found:
        seen = lookup(script, name, frame.scope if frame is not None else here)
        same = {id(b) for b in found} == {id(b) for b in seen}
        early = all(b.scope is not here or script.line(b.statement) <= line for b in found)
        return same and early
    return False
