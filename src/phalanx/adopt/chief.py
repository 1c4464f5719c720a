"""Guard what only one worker may do: files that are written, and runs that are announced."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from phalanx.adopt.edits import Edits
from phalanx.adopt.findings import FindingSeverity, ScriptFinding
from phalanx.adopt.loops import TrainingLoop
from phalanx.adopt.script import ScriptSource, argument, called, receiver

_WRITES = {
    "torch.save",
    "numpy.save",
    "numpy.savez",
    "numpy.savetxt",
    "joblib.dump",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "shutil.copyfile",
    "shutil.copy",
    "shutil.copy2",
    "shutil.move",
    "shutil.rmtree",
    "torch.onnx.export",
    "torch.jit.save",
    "safetensors.torch.save_file",
    "imageio.mimsave",
}
_WRITING_METHODS = {
    "save_image",
    "savefig",
    "save_pretrained",
    "to_csv",
    "push_to_hub",
    "imsave",
    "imwrite",
}
_MAX_STATEMENTS = 8


def guard_effects(
    script: ScriptSource, loop: TrainingLoop, edits: Edits, session: str
) -> tuple[list[ScriptFinding], list[cst.CSTNode]]:
    """Put writing statements under `if session.chief`; return findings and where it is used."""
    findings: list[ScriptFinding] = []
    used: list[cst.CSTNode] = []
    blocks = [one for one in script.find(script.module, cst.With) if _opens_to_write(script, one)]
    for block in blocks:
        if _is_guarded(script, block, session):
            continue
        if _is_small(script, block, loop):
            edits.indent(block, f"if {session}.chief:")
            used.append(block)
        else:
            findings.append(_note(script, block, "a file is open for writing around the training"))
    for call in script.calls:
        if any(script.inside(call, block) for block in blocks) or not _writes(script, call):
            continue
        statement = script.statement(call)
        if _is_guarded(script, call, session):
            continue
        if not _is_plain(script, statement, call):
            findings.append(_note(script, call, f"`{script.code(call.func)}` writes a file"))
            continue
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else call
        edits.surround(first, f"if {session}.chief: ", "")
        used.append(statement)
    if used:
        findings.append(
            ScriptFinding(
                script.line(used[0]),
                FindingSeverity.CHANGED,
                "chief",
                "files are written by one worker",
                "all workers run the script: without a guard they write the same files at once",
            )
        )
    findings += _trackers(script, edits, session, used)
    return findings, used


def _writes(script: ScriptSource, call: cst.Call) -> bool:
    name = script.qualified(call)
    if called(call) in ("makedirs", "mkdir"):
        if any(isinstance(above, cst.Try) for above in script.ancestors(call)):
            return False
        allowed = argument(call, "exist_ok")
        return allowed is None or script.code(allowed.value) != "True"
    return name in _WRITES or called(call) in _WRITING_METHODS


def _is_plain(script: ScriptSource, statement: cst.CSTNode, call: cst.Call) -> bool:
    """Say whether a call is the whole of a statement on a line of its own."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
        and statement.body[0].value is call
    )


def _is_guarded(script: ScriptSource, node: cst.CSTNode, session: str) -> bool:
    pattern = rf"{session}\.chief|rank\s*(==\s*0|in)|is_main|is_master|master_process|not.*rank"
    return any(
        isinstance(above, cst.If) and re.search(pattern, script.code(above.test))
        for above in script.ancestors(node)
    )


def _opens_to_write(script: ScriptSource, block: cst.With) -> bool:
    for item in block.items:
        call = item.item
        if isinstance(call, cst.Call) and called(call) == "open":
            mode = argument(call, "mode", 1 if receiver(call) is None else 0)
            if mode is not None and re.search("[wax]", script.code(mode.value)):
                return True
    return False


def _is_small(script: ScriptSource, block: cst.With, loop: TrainingLoop) -> bool:
    statements = [*script.find(block, cst.SimpleStatementLine)]
    holds = any(script.inside(frame.node, block) for frame in loop.frames)
    multi_line = any("\n" in script.code(text) for text in script.find(block, cst.SimpleString))
    assigns = any(True for _ in script.find(block, cst.Assign))
    return len(statements) <= _MAX_STATEMENTS and not holds and not multi_line and not assigns


def _note(script: ScriptSource, node: cst.CSTNode, what: str) -> ScriptFinding:
    return ScriptFinding(
        script.line(node),
        FindingSeverity.NOTE,
        "writes",
        what,
        "all workers run the script and would write it at once",
        "`if session.chief:` around it",
    )


def _trackers(
    script: ScriptSource, edits: Edits, session: str, used: list[cst.CSTNode]
) -> Iterator[ScriptFinding]:
    for call in script.calls:
        name = script.qualified(call)
        if (
            name == "wandb.init"
            and argument(call, "mode") is None
            and not _is_guarded(script, call, session)
        ):
            text = f'mode=None if {session}.chief else "disabled"'
            last = call.args[-1] if call.args else None
            if last is None:
                edits.replace(call, f"{script.code(call.func)}({text})")
            else:
                edits.surround(last.value, "", f", {text}")
            used.append(script.statement(call))
            yield ScriptFinding(
                script.line(call),
                FindingSeverity.CHANGED,
                "tracker",
                "wandb runs on one worker",
                "every worker would open a run of its own",
            )
        elif called(call) == "SummaryWriter" and not _is_guarded(script, call, session):
            yield ScriptFinding(
                script.line(call),
                FindingSeverity.NOTE,
                "tracker",
                "every worker opens a SummaryWriter",
                "event files of all workers in one folder draw several curves",
                "SummaryWriter(log_dir if session.chief else a folder of its own)",
            )
