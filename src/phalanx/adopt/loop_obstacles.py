"""Look inside the training loop for what must not differ between workers, and for side remarks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from phalanx.adopt.findings import LOCKSTEP, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.flow import origin
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.parts import SetupCall
from phalanx.adopt.script import Loop, ScriptSource, called, key_of, receiver

_IN_PLACE = re.compile(
    r"\.data\.(add|sub|mul|div|copy|clamp|addcmul|addcdiv|lerp|zero)_$|\.(add|sub|copy|clamp)_$"
)


def look_into(
    script: ScriptSource, loop: TrainingLoop, setups: list[SetupCall]
) -> Iterator[ScriptFinding]:
    """Yield what the body of the loop holds against rewriting, and what is good to know."""
    yield from hidden_state(script, loop.batches)
    yield from weights_by_hand(script, loop, setups)
    yield from _gradients_by_hand(script, loop)
    yield from _break_on_loss(script, loop)
    yield from _rate_by_hand(script, loop)
    yield from _batch_norm(script)


def hidden_state(script: ScriptSource, loop: Loop) -> Iterator[ScriptFinding]:
    """Find names that leave one pass of a loop as outputs and enter the next as inputs."""
    for assign in script.find(loop.body, cst.Assign):
        if not isinstance(assign.value, cst.Call):
            continue
        targets = [t.target for t in assign.targets]
        names = {n.value for t in targets for n in _names(t)}
        inputs = {arg.value.value for arg in assign.value.args if isinstance(arg.value, cst.Name)}
        # Made anew from the batch, or set before use in each pass, it is not carried over.
        carried = {
            name
            for name in names & inputs
            if not _set_before(script, loop, name, assign) and not _is_batch(script, loop, name)
        }
        is_model = key_of(assign.value.func) is not None and not isinstance(targets[0], cst.Name)
        if carried and is_model:
            name = min(carried)
            yield refuse(
                script.line(assign),
                "hidden-state",
                f"`{name}` is carried from one batch to the next",
                "it belongs to the rows of the last batch, and a worker's next rows are others",
                "start every batch from a fresh state, as model.init_hidden() does",
            )
            return


def _names(node: cst.BaseExpression) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    elif isinstance(node, cst.Tuple | cst.List):
        for element in node.elements:
            yield from _names(element.value)


def _set_before(script: ScriptSource, loop: Loop, name: str, assign: cst.Assign) -> bool:
    """Say whether a pass sets a name from something else before a statement."""
    for other in script.find(loop.body, cst.Assign):
        if script.line(other) >= script.line(assign):
            return False
        sets = any(n.value == name for t in other.targets for n in _names(t.target))
        if sets and name not in {n.value for n in _all_names(script, other.value)}:
            return True
    return False


def _all_names(script: ScriptSource, node: cst.BaseExpression) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    yield from script.find(node, cst.Name)


def _is_batch(script: ScriptSource, loop: Loop, name: str) -> bool:
    if isinstance(loop, cst.While):
        return False
    return name in {n.value for n in _all_names(script, loop.target)}


def weights_by_hand(
    script: ScriptSource, loop: TrainingLoop, setups: list[SetupCall] | None = None
) -> Iterator[ScriptFinding]:
    """Find loops over parameters that write them; without setups, those of any network."""
    for root in loop.body:
        for one in script.find(root, cst.For):
            if "parameters()" not in script.code(one.iter):
                continue
            first = _first_iterated(script, one)
            if first is None or (setups is not None and not _is_trained(script, first, setups)):
                continue
            names = [n.value for n in _names(one.target)]
            target = (
                names[0]
                if names and "zip(" in script.code(one.iter)
                else names[-1]
                if names
                else ""
            )
            for line in _writes(script, one, target):
                yield refuse(
                    line,
                    "weights-by-hand",
                    "weights are changed by hand in the loop",
                    "servers and other workers would not learn of it",
                    "torch.optim.SGD for `p -= lr * p.grad`; a parametrization for constraints",
                )
                return


def _first_iterated(script: ScriptSource, loop: cst.For) -> cst.BaseExpression | None:
    for call in (c for c in script.calls if script.inside(c, loop.iter)):
        if called(call).endswith("parameters"):
            return receiver(call)
    return None


def _is_trained(script: ScriptSource, node: cst.BaseExpression, setups: list[SetupCall]) -> bool:
    key = key_of(node)
    if key is None:
        return False
    if any(key in setup.models for setup in setups):
        return True
    made = origin(script, node, script.scope(node))
    return made is not None and any(
        made.key in setup.models and made.scope is setup.scope for setup in setups
    )


def _writes(script: ScriptSource, loop: cst.For, name: str) -> Iterator[int]:
    for augmented in script.find(loop.body, cst.AugAssign):
        if re.fullmatch(rf"{name}(\.data)?", script.code(augmented.target)):
            yield script.line(augmented)
    for assign in script.find(loop.body, cst.Assign):
        if any(script.code(t.target) == f"{name}.data" for t in assign.targets):
            yield script.line(assign)
    for call in script.find(loop.body, cst.Call):
        text = script.code(call.func)
        if text.startswith(f"{name}.") and ".grad" not in text and _IN_PLACE.search(text):
            yield script.line(call)


def _gradients_by_hand(script: ScriptSource, loop: TrainingLoop) -> Iterator[ScriptFinding]:
    for root in loop.body:
        for assign in script.find(root, cst.Assign):
            targets = [script.code(t.target) for t in assign.targets]
            if any(t.endswith(".grad") for t in targets) and script.code(assign.value) != "None":
                yield refuse(
                    script.line(assign),
                    "gradients-by-hand",
                    f"`{targets[0]}` is set by hand",
                    "gradients are exchanged inside backward(), before this line",
                    "a loss whose backward() gives these gradients",
                )
                return


def _break_on_loss(script: ScriptSource, loop: TrainingLoop) -> Iterator[ScriptFinding]:
    for leave in (
        *script.find(loop.batches.body, cst.Break),
        *script.find(loop.batches.body, cst.Return),
    ):
        if script.loops(leave)[:1] not in ([loop.batches], []):
            continue
        tests = [
            script.code(a.test)
            for a in script.ancestors(leave)
            if isinstance(a, cst.If) and script.inside(a, loop.batches)
        ]
        if tests and re.fullmatch(r"[\w.]+", tests[0]) and not re.search("loss|nan", tests[0]):
            # A flag for trial runs is the same on all workers.
            yield ScriptFinding(
                script.line(leave),
                FindingSeverity.NOTE,
                "trial-run",
                f"`{tests[0]}` leaves the loop over batches early",
                "a trial run of one epoch works; a second epoch is refused when it begins",
                "session.data(loader, steps=n) for a fixed number of updates",
            )
            continue
        if any(re.search(r"loss|acc|nan|finite", test) for test in tests):
            yield refuse(
                script.line(leave),
                "leaves-on-loss",
                f"the loop is left on `{tests[0]}`",
                "the loss is that of this worker's rows: one would leave and the others wait",
                "decide at the end of the epoch, on a value from session.report(...)",
            )
        else:
            yield refuse(
                script.line(leave),
                "leaves-early",
                "the loop over batches is left before its end",
                "each sample of an epoch is some worker's: those after the end would be left out",
                "session.data(loader, steps=n) for a fixed number of updates",
            )


def _rate_by_hand(script: ScriptSource, loop: TrainingLoop) -> Iterator[ScriptFinding]:
    for assign in script.find(script.module, cst.Assign):
        for target in assign.targets:
            if re.search(r"\[['\"](lr|momentum|weight_decay)['\"]\]$", script.code(target.target)):
                yield ScriptFinding(
                    script.line(assign),
                    FindingSeverity.NOTE,
                    "rate-by-hand",
                    f"`{script.code(target.target)}` is set by hand",
                    "right where each worker steps the optimiser; servers follow schedulers only",
                    "a scheduler (LambdaLR) given to session.setup, for parameter servers",
                    LOCKSTEP,
                )
                return


def _batch_norm(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        if re.match(r"(Lazy)?BatchNorm", called(call)) or "torchvision.models" in script.qualified(
            call
        ):
            yield ScriptFinding(
                script.line(call),
                FindingSeverity.NOTE,
                "batch-norm",
                "batch normalisation",
                "its statistics are those of each worker's rows, not of the whole batch",
                "keep 16 rows or more per worker",
            )
            return
