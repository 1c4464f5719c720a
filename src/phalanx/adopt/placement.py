"""Place `import phalanx` and the line that opens the session."""

from __future__ import annotations

import libcst as cst

from phalanx.adopt.edits import Edits
from phalanx.adopt.script import Scope, ScriptSource


def place_session(
    script: ScriptSource, edits: Edits, session: str, uses: list[cst.CSTNode]
) -> None:
    """Insert the import after the script's imports, and the session where all uses see it.

    It is opened in the function that holds all uses, in the `__main__` block if that does, and
    otherwise beside the imports: a module that worker processes of a loader import again should
    not open it a second time.
    """
    opening = f"{session} = phalanx.session()"
    scopes = {id(script.scope(one)): script.scope(one) for one in uses}
    last = _last_import(script)
    inner = _home(script, list(scopes.values()), uses)
    if inner is None:
        lines = ["import phalanx", "", opening]
    else:
        lines = ["import phalanx"]
        edits.insert_before(inner, opening)
    if last is not None:
        edits.insert_after(last, *lines)
    else:
        edits.insert_before(script.module.body[0], *lines)


def _home(script: ScriptSource, scopes: list[Scope], uses: list[cst.CSTNode]) -> cst.CSTNode | None:
    """Return the statement before which the session is opened; None for the module's head."""
    if len(scopes) != 1:
        return None
    (scope,) = scopes
    if isinstance(scope, cst.FunctionDef):
        if script.class_of(scope) is not None or not isinstance(scope.body, cst.IndentedBlock):
            return None
        body = list(scope.body.body)
        return body[1] if len(body) > 1 and _is_docstring(body[0]) else body[0]
    for statement in script.module.body:
        if (
            isinstance(statement, cst.If)
            and "__name__" in script.code(statement.test)
            and all(script.inside(one, statement) for one in uses)
            and isinstance(statement.body, cst.IndentedBlock)
        ):
            return statement.body.body[0]
    return None


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _last_import(script: ScriptSource) -> cst.CSTNode | None:
    """Return the last import at the head of the module: before functions, classes and loops."""
    last: cst.CSTNode | None = None
    for statement in script.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef | cst.For | cst.While):
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        imports = any(isinstance(one, cst.Import | cst.ImportFrom) for one in statement.body)
        if imports or (last is None and _is_docstring(statement)):
            last = statement
    return last
