"""Make functions of a notebook or script importable for the processes of a run.

A worker imports `package.module:name`; a function that was typed into a cell has no module. Its
source is written to one, together with what it uses: imports, constants, and other functions and
classes of the notebook. What cannot be written as source is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.errors import SpecError
from phalanx.store.atomic import write_atomically

_MAIN = "__main__"


def with_importable_code(job: Mapping[str, object], folder: Path) -> dict[str, Any]:
    """Replace functions among the settings of a job by `module:name`.

    Args:
        job: The mapping of a job; not changed.
        folder: Where modules for functions of a notebook are written.

    Raises:
        SpecError: A function cannot be imported, and not be written as a module either.
    """
    written: list[str] = []

    def named(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: named(one) for key, one in value.items()}
        if not inspect.isroutine(value) and not inspect.isclass(value):
            return value
        if value.__module__ != _MAIN and "." not in value.__qualname__:
            return f"{value.__module__}:{value.__name__}"
        written.append(str(folder))
        return _write_module(value, folder)

    found = {key: named(value) for key, value in job.items()}
    if written:
        given = found.get("python_path") or ()
        found["python_path"] = [*given, str(folder.resolve())]  # type: ignore[misc]
    return found


def _write_module(function: Callable[..., object], folder: Path) -> str:
    source = source_of(function)
    module = f"cell_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{module}.py", source.encode())
    return f"{module}:{function.__name__}"


def source_of(function: Callable[..., object]) -> str:
    """Return the source of a module that holds a function and all that it uses.

    Raises:
        SpecError: It is nameless, made inside another function, or uses what has no source.
    """
    pieces: dict[str, str] = {}
    _collect(function, function.__name__, pieces, set())
    return "\n".join(pieces.values())


def _collect(value: Any, name: str, pieces: dict[str, str], begun: set[str]) -> None:
    """Add a function or class, after all that it uses."""
    if value.__name__ == "<lambda>" or "<locals>" in value.__qualname__:
        raise SpecError(
            f"'{name}' has no place of its own that a worker can import; define it with `def` or "
            "`class` at the top of a cell or module"
        )
    source = _read_source(value)
    if not source:
        raise SpecError(
            f"the source of '{name}' is not known; put it into a module and name it as "
            "'module:function'"
        )
    begun.add(name)
    known = vars(sys.modules.get(value.__module__, builtins)) | getattr(value, "__globals__", {})
    for used in _names_in(source):
        if used in known and used not in begun:
            begun.add(used)
            _collect_used(used, known[used], pieces, begun, user=name)
    pieces[name] = source


def _read_source(value: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        return _class_source(value) if inspect.isclass(value) else ""


def _class_source(value: type) -> str:
    """Find the source of a class of a notebook by its methods; empty if it has none."""
    for code in [one.__code__ for one in vars(value).values() if inspect.isfunction(one)]:
        text = "".join(linecache.getlines(code.co_filename))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                return f"{ast.get_source_segment(text, node)}\n"
    return ""


def _names_in(source: str) -> list[str]:
    found = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(found) if not hasattr(builtins, name)]


def _collect_used(
    name: str, value: object, pieces: dict[str, str], begun: set[str], *, user: str
) -> None:
    if isinstance(value, ModuleType):
        pieces[name] = f"import {value.__name__} as {name}"
    elif inspect.isroutine(value) or inspect.isclass(value):
        if value.__module__ == _MAIN:
            _collect(value, name, pieces, begun)
        else:
            pieces[name] = f"from {value.__module__} import {value.__name__} as {name}"
    elif _is_literal(value):
        pieces[name] = f"{name} = {value!r}\n"
    else:
        raise SpecError(
            f"'{user}' uses '{name}' of the notebook, which is {type(value).__name__} and cannot "
            "be written into a module; make it inside the function, or pass it in 'args'"
        )


def _is_literal(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False
