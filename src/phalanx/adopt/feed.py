"""Put `session.data` around the loader of the training loop, and around nothing else."""

from __future__ import annotations

import re

import libcst as cst

from phalanx.adopt.anchor import last_of
from phalanx.adopt.edits import Edits
from phalanx.adopt.findings import Doubt, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.flow import Frame, lookup, origin, parameter_owner
from phalanx.adopt.loops import TrainingLoop, stripped
from phalanx.adopt.script import Scope, ScriptSource, called, key_of

_ATTRIBUTES = {"dataset", "batch_size"}
_PASSIVE = {"len", "print", "isinstance", "hasattr", "id", "type"}


def feed_loader(
    script: ScriptSource, loop: TrainingLoop, edits: Edits, session: str
) -> cst.CSTNode:
    """Write `session.data(loader)`; return the statement that got it.

    Raises:
        Doubt: The loader is made anew in every epoch, or read outside of the training too.
    """
    made = loop.loader
    _refuse_inside_epochs(script, loop)
    _refuse_endless(script, loop)
    before = _training_line(script, loop, made.scope)
    statements = [
        b.statement for b in made.bindings if before is None or script.line(b.statement) < before
    ]
    after = last_of(script, statements, made.scope, loop)
    if loop.part is not None:
        item = f'{made.key}["{loop.part}"]'
        edits.insert_after(after, f"{item} = {session}.data({item})")
        return after
    others = [n for n in _references(script, loop) if not _is_passive(script, loop, n)]
    others += _reads_elsewhere(script, loop)
    others = [node for node in others if not _asks_batch_size(script, edits, node)]
    if others:
        return _feed_beside(script, loop, edits, session, after, others)
    maker = made.makers[0]
    one_line = script.line(maker.statement) == script.end_line(maker.statement)
    if (
        len(statements) == 1
        and isinstance(maker.value, cst.Call)
        and maker.index is None
        and one_line
    ):
        edits.surround(maker.value, f"{session}.data(", ")")
    else:
        edits.insert_after(after, f"{made.key} = {session}.data({made.key})")
    return after


def changed_finding(
    script: ScriptSource, loop: TrainingLoop, statement: cst.CSTNode
) -> ScriptFinding:
    """Report the change."""
    return ScriptFinding(
        script.line(statement),
        FindingSeverity.CHANGED,
        "data",
        f"`{loop.loader.key}` is read through the session",
        "its batch is the batch of all workers together, cut over them: each sample once per epoch",
    )


def _training_line(script: ScriptSource, loop: TrainingLoop, scope: Scope) -> int | None:
    for frame in loop.frames:
        if frame.scope is scope:
            return min(script.line(one) for one in (frame.node, *frame.loops))
    return None


def _refuse_inside_epochs(script: ScriptSource, loop: TrainingLoop) -> None:
    """Refuse a loader that is made within the loop over epochs, directly or by a call."""
    if loop.epochs is None:
        return
    holder = next(i for i, f in enumerate(loop.frames) if loop.epochs in f.loops)
    inner = [frame.scope for frame in loop.frames[:holder]]
    statement = loop.loader.makers[0].statement
    if script.inside(statement, loop.epochs) or any(loop.loader.scope is one for one in inner):
        raise Doubt(
            refuse(
                script.line(statement),
                "loader-per-epoch",
                f"`{loop.loader.key}` is made anew in every epoch",
                "the session follows one loader through all epochs, to resume in the middle of one",
                "make it once before the loop over epochs",
            )
        )


def _refuse_endless(script: ScriptSource, loop: TrainingLoop) -> None:
    """Refuse a loader without length: the session has to know when the training ends."""
    streams = {
        owner.name.value
        for owner in script.classes
        if any("IterableDataset" in script.code(base.value) for base in owner.bases)
        and not any(f.name.value == "__len__" for f in script.find(owner, cst.FunctionDef))
    }
    if loop.loader.value is None:
        return
    text = script.code(loop.loader.value)
    names = {n.value for n in script.find(loop.loader.value, cst.Name)}
    for name in names:
        for binding in lookup(script, name, loop.loader.scope):
            if binding.value is not None:
                text += " " + script.code(binding.value)
    if any(re.search(rf"\b{name}\(", text) for name in streams) or "streaming=True" in text:
        raise Doubt(
            refuse(
                script.line(loop.loader.makers[0].statement),
                "no-length",
                f"`{loop.loader.key}` has no length",
                "the number of updates has to be known before the first",
                f"by hand: session.data({loop.loader.key}, steps=number of updates)",
            )
        )


def _reads_elsewhere(script: ScriptSource, loop: TrainingLoop) -> list[cst.CSTNode]:
    """Return reads of the loader under its other names: as a parameter or an attribute."""
    read: list[cst.BaseExpression] = [
        one.iter for one in script.find(script.module, cst.For) if one is not loop.batches
    ]
    read += [one.iter for one in script.find(script.module, cst.CompFor)]
    read += [
        arg.value
        for call in script.calls
        if called(call) in ("iter", "next", "list", "zip")
        for arg in call.args
    ]
    wanted = (loop.loader.key, loop.loader.scope)
    found: list[cst.CSTNode] = []
    for node in map(stripped, read):
        made = origin(script, node, script.scope(node)) if key_of(node) is not None else None
        if made is not None and (made.key, made.scope) == wanted:
            found.append(node)
    return found


def _asks_batch_size(script: ScriptSource, edits: Edits, node: cst.CSTNode) -> bool:
    """Put `loader.batch_size` in the place of `len(next(iter(loader))[0])`, which reads a batch."""
    text = script.code(node)
    for above in script.ancestors(node):
        if isinstance(above, cst.Call) and script.code(above) == f"len(next(iter({text}))[0])":
            edits.replace(above, f"{text}.batch_size")
            return True
    return False


def _references(script: ScriptSource, loop: TrainingLoop) -> list[cst.CSTNode]:
    """Return the reads of the loader's variable in all scopes that see it."""
    made = loop.loader
    found: list[cst.CSTNode] = []
    for kind in (cst.Name, cst.Attribute):
        for node in script.find(script.module, kind):
            if key_of(node) != made.key or _is_name_part(script, node):
                continue
            scope = script.scope(node)
            if made.key.startswith("self."):
                same = script.class_of(node) is script.class_of(made.makers[0].statement)
            else:
                owner = parameter_owner(script, made.key, scope)
                homes = lookup(script, made.key, scope)
                same = owner is None and any(b.scope is made.scope for b in homes)
            if same and not any(
                isinstance(a, cst.AssignTarget | cst.AnnAssign)
                and node is getattr(a, "target", None)
                for a in script.ancestors(node)
            ):
                found.append(node)
    return [n for n in found if not _is_in_target(script, n)]


def _is_name_part(script: ScriptSource, node: cst.CSTNode) -> bool:
    above = script.parent(node)
    if isinstance(above, cst.Attribute) and above.attr is node:
        return True
    return (isinstance(above, cst.Arg | cst.Param) and getattr(above, "keyword", None) is node) or (
        isinstance(above, cst.Param) and above.name is node
    )


def _is_in_target(script: ScriptSource, node: cst.CSTNode) -> bool:
    return any(isinstance(a, cst.AssignTarget) for a in script.ancestors(node))


def _is_passive(script: ScriptSource, loop: TrainingLoop, node: cst.CSTNode) -> bool:
    """Say whether a use of the loader reads no batch, or is the training itself."""
    if script.inside(node, loop.batches.iter) or script.inside(node, loop.reads):
        return True
    above = script.parent(node)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _ATTRIBUTES
    if isinstance(above, cst.Comparison | cst.If | cst.BooleanOperation):
        return True
    if isinstance(above, cst.Arg):
        call = script.parent(above)
        if isinstance(call, cst.Call):
            return _is_passive_call(script, loop, call, node)
    if isinstance(above, cst.Element | cst.Return):
        # Returned to where the loop takes it from.
        return isinstance(above, cst.Return)
    return False


def _is_passive_call(
    script: ScriptSource, loop: TrainingLoop, call: cst.Call, node: cst.CSTNode
) -> bool:
    if called(call) in _PASSIVE or any(frame.node is call for frame in loop.frames):
        return True
    if called(call) in ("tqdm", "enumerate") and any(
        script.inside(call, root) for root in (loop.batches.iter, loop.reads)
    ):
        return True
    owners = {owner.name.value for owner in script.classes}
    names = {
        frame.scope.name.value for frame in loop.frames if isinstance(frame.scope, cst.FunctionDef)
    }
    return called(call) in owners | names


def _feed_beside(
    script: ScriptSource,
    loop: TrainingLoop,
    edits: Edits,
    session: str,
    after: cst.CSTNode,
    others: list[cst.CSTNode],
) -> cst.CSTNode:
    """Give the training a feed of its own and leave the loader to the others that read it."""
    made = loop.loader
    name = "feed" if "feed" not in script.bindings else "train_feed"
    frame = next((f for f in loop.frames if f.scope is made.scope), None)
    places = [] if frame is None else _training_uses(script, loop, made.key, frame)
    if len(places) != 1 or name in script.bindings:
        raise Doubt(
            refuse(
                script.line(others[0]),
                "loader-read-twice",
                f"`{made.key}` is also read outside of the training loop",
                "the session counts every batch of its feed as training",
                "a loader of its own for what is not training",
            )
        )
    edits.insert_after(after, f"{name} = {session}.data({made.key})")
    edits.replace(places[0], name)
    return after


def _training_uses(
    script: ScriptSource, loop: TrainingLoop, key: str, frame: Frame
) -> list[cst.CSTNode]:
    if frame.scope is loop.batches_scope:
        return [loop.reads] if key_of(loop.reads) == key else []
    if isinstance(frame.node, cst.Call):
        return [arg.value for arg in frame.node.args if key_of(arg.value) == key]
    return []
