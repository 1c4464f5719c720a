"""Find the line after which something has been made, in every run of the script."""

from __future__ import annotations

import libcst as cst

from phalanx.adopt.findings import Doubt, ScriptFinding, refuse
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.script import Scope, ScriptSource


def last_of(
    script: ScriptSource, statements: list[cst.CSTNode], scope: Scope, loop: TrainingLoop | None
) -> cst.CSTNode:
    """Return the statement after which all the given ones have run.

    Raises:
        Doubt: They run in a loop, or under a condition that does not hold the training as well.
    """
    paths = [_path(script, one, scope) for one in statements]
    depth = 0
    while all(len(p) > depth + 1 for p in paths) and len({id(p[depth][0]) for p in paths}) == 1:
        if len({id(p[depth][1]) for p in paths}) > 1:
            break
        depth += 1
    if len({id(p[depth][0]) for p in paths}) > 1:
        depth -= 1
    last = max((p[depth][1] for p in paths), key=script.line)
    for above in script.ancestors(last):
        if above is scope or isinstance(above, cst.FunctionDef):
            break
        if isinstance(above, cst.For | cst.While):
            raise Doubt(_made_in_loop(script, last, above))
        if (
            isinstance(above, cst.If)
            and not _is_guard(script, above)
            and not (loop is not None and _holds_training(script, above, loop))
        ):
            raise Doubt(
                refuse(
                    script.line(last),
                    "conditional",
                    f"made only under the condition at line {script.line(above)}",
                    "without the condition the script would train outside of the session",
                    "make model, optimiser and loader in every case",
                )
            )
    return last


def _path(
    script: ScriptSource, node: cst.CSTNode, scope: Scope
) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """Return blocks and the statement in each that leads to a node, outermost first."""
    found: list[tuple[cst.CSTNode, cst.CSTNode]] = []
    below = node
    for above in script.ancestors(node):
        if isinstance(above, cst.IndentedBlock | cst.Module):
            found.append((above, below))
        if above is scope:
            break
        below = above
    return found[::-1]


def _made_in_loop(script: ScriptSource, node: cst.CSTNode, loop: cst.CSTNode) -> ScriptFinding:
    return refuse(
        script.line(node),
        "made-in-loop",
        f"made anew in every turn of the loop at line {script.line(loop)}",
        "a session takes model, optimiser and loader once",
        "make it once before the loop; for several trainings, one run each",
    )


def _is_guard(script: ScriptSource, node: cst.If) -> bool:
    return "__name__" in script.code(node.test)


def _holds_training(script: ScriptSource, node: cst.If, loop: TrainingLoop) -> bool:
    return any(script.inside(frame.node, node) for frame in loop.frames)
