"""Find and call a network of another package: `package.module:function` or a `ModelKind`.

Every error in the user's code becomes a SpecError of one sentence, with the original exception as
its cause. No framework is imported here: the caller (the catalogue, or the TensorFlow backend)
checks what the function returned.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from pydantic_core import PydanticCustomError

from phalanx.errors import SpecError
from phalanx.spec.base import Spec
from phalanx.spec.model import MODELS, ModelKind
from phalanx.spec.names import did_you_mean
from phalanx.spec.registry import (
    IMPORT_PATH,
    as_module,
    current_directory_importable,
    read_args,
)


def find_network(name: str) -> Callable[..., object] | ModelKind:
    """Import what a job's model name leads to, if it is not built in.

    Raises:
        SpecError: One sentence that names what is missing and what is there.
    """
    if not IMPORT_PATH.match(name):
        return MODELS.find(name)
    with current_directory_importable():
        return _find_function(name)


def settings_of(name: str, kind: ModelKind, args: Mapping[str, object]) -> Spec:
    """Validate the arguments of a network that is described by a kind.

    Raises:
        SpecError: One sentence that names the argument.
    """
    if kind.settings is None:
        raise SpecError(f"model '{name}' is a ModelKind without settings", model=name)
    try:
        return read_args(kind.settings, args, section="model")
    except PydanticCustomError as error:
        raise SpecError(str(error), model=name) from None


def call_user_function(
    name: str,
    function: Callable[..., object],
    args: Mapping[str, object],
    offered: Mapping[str, object],
) -> object:
    """Call the user's function, with the current directory importable, and return what it built.

    What is `offered` is passed too, if the function takes it and `args` does not set it.
    """
    with current_directory_importable():
        arguments = _arguments(name, function, args, offered)
        try:
            return function(**arguments)
        except Exception as error:  # user code may raise anything; the cause stays attached
            raise SpecError(
                f"model '{name}' raised {type(error).__name__}: {error}", model=name
            ) from error


def _find_function(name: str) -> Callable[..., object] | ModelKind:
    module_name, _, function_name = name.partition(":")
    module = _import(module_name, model=name)
    function = getattr(module, function_name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value)]
        raise SpecError(
            f"model '{name}': module '{module_name}' has no '{function_name}'"
            f"{_nearest(function_name, known)}",
            model=name,
        )
    if isinstance(function, ModelKind):
        return function
    if not callable(function):
        raise SpecError(
            f"model '{name}': '{function_name}' is {type(function).__name__}, not a function",
            model=name,
        )
    found: Callable[..., object] = function
    return found


def _import(module_name: str, *, model: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name != missing and not module_name.startswith(missing + "."):
            raise SpecError(
                f"model '{model}': '{module_name}' needs '{missing}', which is not installed",
                model=model,
            ) from error
        where = as_module(model) or f" among the installed packages or in {_place(missing)}"
        # Nothing of the user's has run that a traceback could show.
        raise SpecError(
            f"model '{model}': there is no module '{missing}'{where}", model=model
        ) from None
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SpecError(
            f"model '{model}': importing '{module_name}' raised {type(error).__name__}: {error}",
            model=model,
        ) from error


def _place(missing: str) -> str:
    """Return where a missing module was searched for, and what is there instead."""
    parent, _, last = missing.rpartition(".")
    path = list(getattr(sys.modules.get(parent), "__path__", [])) if parent else [str(Path.cwd())]
    place = f"package '{parent}'" if parent else path[0]
    return f"{place}{_nearest(last, (found.name for found in pkgutil.iter_modules(path)))}"


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(key for key in known if not key.startswith("_"))
    close = did_you_mean(name, names)
    if close or not names:
        return close
    return f"; it has {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"


def _arguments(
    name: str,
    function: Callable[..., object],
    args: Mapping[str, object],
    offered: Mapping[str, object],
) -> dict[str, object]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some classes written in C have no signature to read; they get the spec's arguments alone.
        return dict(args)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    arguments = {
        key: value for key, value in offered.items() if takes_any or key in signature.parameters
    }
    arguments.update(args)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SpecError(
            f"model '{name}': {error}; it takes {signature}, and 'args' gives "
            f"{sorted(args) or 'nothing'}",
            model=name,
        ) from error
    return arguments
