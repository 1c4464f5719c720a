"""The page docs/ref-python.md, written from signatures and docstrings of the public names.

`docs/generate_ref_python.py` writes the page; a test compares the two. Modules are parsed, not
imported, so neither torch nor Keras has to load.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# Title, the name to show, and where it is defined.
PUBLIC = {
    "Train and resume": (
        ("phalanx.train", "phalanx.notebook.run:train"),
        ("phalanx.resume", "phalanx.notebook.run:resume"),
        ("RunResult", "phalanx.notebook.run_result:RunResult"),
    ),
    "Use what was trained": (
        ("phalanx.open_run", "phalanx.notebook.run:open_run"),
        ("TrainedRun", "phalanx.results.trained_run:TrainedRun"),
    ),
    "In a script of your own": (
        ("phalanx.session", "phalanx.program.current:session"),
        ("ScriptSession", "phalanx.program.session:ScriptSession"),
    ),
    "Job files": (
        ("phalanx.load_job", "phalanx.spec.loader:load_job"),
        ("phalanx.JobSpec", "phalanx.spec.job:JobSpec"),
    ),
    "Keras models": (
        ("phalanx.fit", "phalanx.integrations.keras:fit"),
        ("Fitted", "phalanx.integrations.keras:Fitted"),
    ),
    "Many short runs": (("phalanx.warm_workers", "phalanx.launch.fork_server:warm_workers"),),
    "Plans, simulations, studies and reports": tuple(
        (f"phalanx.api.{name}", f"phalanx.api:{name}")
        for name in (
            *("plan_job", "simulate", "run_study", "resume_study", "tune_switch"),
            *("resume_tune", "make_report", "bench_inference"),
        )
    ),
}

_HEAD = """\
<!-- Written by docs/generate_ref_python.py from the docstrings in src/phalanx; edit those. -->

# Python

`import phalanx` costs nothing; every name loads what it needs when it is used first.
[how-to-python](how-to-python.md), [how-to-results](how-to-results.md) and the
[tutorial for scripts](tutorial-own-script.md) show them in use. Everything that can go wrong is a
`phalanx.errors.PhalanxError` with the [exit code](ref-exit-codes.md) of the commands.
"""
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
_TITLES = {"Args": "argument", "Attributes": "attribute", "Raises": "raises"}
_PAGE = re.compile(r"`docs/([\w-]+)\.md`")
_JOB = "phalanx.JobSpec"
# What the classes' users never call.
_INTERNAL = ("begin",)
_WIDTH = 96

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_page() -> str:
    """Return the whole page as Markdown."""
    parts = [_HEAD]
    for title, names in PUBLIC.items():
        parts.append(f"\n## {title}\n")
        for name, home in names:
            parts += _entry(name, _definition(home))
    return "\n".join(parts).rstrip() + "\n"


def _definition(home: str) -> Function | ast.ClassDef:
    module, name = home.split(":")
    tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{module} defines no {name}")


def _entry(name: str, node: Function | ast.ClassDef) -> list[str]:
    if isinstance(node, ast.ClassDef):
        lines = [f"### {name}\n", *_text(ast.get_docstring(node) or "")]
        if name == _JOB:
            return [*lines, "Its fields are the keys of the [job file](ref-job.md).\n"]
        return [*lines, *_methods(node)]
    return [f"### {name}\n", *_signature(name, node), *_text(ast.get_docstring(node) or "")]


def _methods(node: ast.ClassDef) -> list[str]:
    """Describe the public methods; attributes in one table before them."""
    functions = [one for one in node.body if isinstance(one, Function)]
    own = [one for one in functions if one.name[0] != "_" and one.name not in _INTERNAL]
    values = [one for one in own if _is_property(one)]
    rows = [f"| `{one.name}` | {_first_line(one)} |" for one in values]
    lines = ["| attribute | meaning |", "|---|---|", *rows, ""] if rows else []
    for method in own:
        if method not in values:
            lines += [f"#### {node.name}.{method.name}\n", *_signature(method.name, method)]
            lines += _text(ast.get_docstring(method) or "")
    return lines


def _is_property(node: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)


def _first_line(node: Function) -> str:
    return (ast.get_docstring(node) or "").splitlines()[0]


def _signature(name: str, node: Function) -> list[str]:
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    given = _each_argument(node.args)
    line = f"{name}({', '.join(given)}){returned}"
    if len(line) > _WIDTH:
        inner = "".join(f"    {one},\n" for one in given)
        line = f"{name}(\n{inner}){returned}"
    return [f"```python\n{line}\n```\n"]


def _each_argument(given: ast.arguments) -> list[str]:
    """Return the text of every argument, with the star that begins those by name."""
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    found = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if given.vararg is not None:
        found.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [
        _argument(one, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        found.append(f"**{ast.unparse(given.kwarg)}")
    return [one for one in found if one != "self"]


def _argument(given: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(given) + (f" = {ast.unparse(default)}" if default is not None else "")


def _text(docstring: str) -> list[str]:
    """Turn a docstring with Google's sections into paragraphs and tables."""
    linked = _PAGE.sub(r"[\1](\1.md)", inspect.cleandoc(docstring))
    first, *rest = _SECTION.split(linked)
    lines = [f"{first.strip()}\n"] if first.strip() else []
    for section, body in zip(rest[::2], rest[1::2], strict=True):
        plain = inspect.cleandoc(body)
        if section in _TITLES:
            rows = [f"| `{key}` | {value} |" for key, value in _items(plain)]
            lines += [f"| {_TITLES[section]} | meaning |", "|---|---|", *rows, ""]
        else:
            lines.append(f"{section}: {plain}\n")
    return lines


def _items(body: str) -> list[tuple[str, str]]:
    """Split `name: text` entries, whose further lines are indented."""
    joined = re.sub(r"\n[ \t]+", " ", body)
    found = [line.partition(": ") for line in joined.splitlines() if line.strip()]
    return [(name.strip(), text.strip().replace("|", "\\|")) for name, _, text in found]
