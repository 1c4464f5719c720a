"""A network that the user wrote: `package.module:function`, found, called and checked.

Everything that can go wrong in the user's text becomes a SpecError of one sentence; the original
exception stays attached as its cause. No framework is imported here: what the function must return
is checked by who calls, the catalogue or the peer that trains Keras networks.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from phalanx.errors import SpecError
from phalanx.spec.modality import Modality
from phalanx.spec.model import UserModelSpec
from phalanx.spec.names import did_you_mean


def call_user_function(
    spec: UserModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality] = (),
) -> object:
    """Call the user's function and return what it built.

    The current directory is importable during the call. `input_shape`, `num_classes` and
    `modalities` are passed if the function takes them and the spec's own arguments do not set them.
    """
    with _current_directory_importable():
        function = _find_function(spec.name)
        offered: dict[str, object] = {"input_shape": input_shape, "num_classes": num_classes}
        if modalities:
            offered["modalities"] = tuple(modalities)
        arguments = _arguments(spec, function, offered)
        try:
            return function(**arguments)
        except Exception as error:  # user code may raise anything; the cause stays attached
            raise SpecError(
                f"model '{spec.name}' raised {type(error).__name__}: {error}", model=spec.name
            ) from error


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    directory = str(Path.cwd())
    if directory in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        # The user's module may have changed sys.path itself, so the entry is looked for.
        if directory in sys.path:
            sys.path.remove(directory)


def _find_function(name: str) -> Callable[..., object]:
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
        raise SpecError(
            f"model '{model}': there is no module '{missing}' among the installed packages or in "
            f"{_place(missing)}",
            model=model,
        ) from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SpecError(
            f"model '{model}': importing '{module_name}' raised {type(error).__name__}: {error}",
            model=model,
        ) from error


def _place(missing: str) -> str:
    """Where a missing module was looked for, and what is there instead."""
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
    spec: UserModelSpec, function: Callable[..., object], offered: dict[str, object]
) -> dict[str, object]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some classes written in C have no signature to read; they get the spec's arguments alone.
        return dict(spec.args)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    arguments = {
        key: value for key, value in offered.items() if takes_any or key in signature.parameters
    }
    arguments.update(spec.args)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SpecError(
            f"model '{spec.name}': {error}; it takes {signature}, and 'args' gives "
            f"{sorted(spec.args) or 'nothing'}",
            model=spec.name,
        ) from error
    return arguments
