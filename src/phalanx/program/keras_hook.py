"""Let a plain `fit` of Keras train with all workers, in scripts that `phalanx launch` runs.

Keras is patched when the script imports it, on its torch backend only. A script that asks for its
session itself says by it what is trained, and is left alone. Nothing is patched in `python
script.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from typing_extensions import override

from phalanx.program.current import is_asked_for
from phalanx.spec.registry import load

_SHARED_FIT = "phalanx.integrations.keras_torch:fit_shared"
"""By its path: only what imports Keras may be loaded, and only with it."""


@contextmanager
def shared_fit() -> Iterator[None]:
    """Patch Keras as it is imported, until the block is left."""
    undo: list[Callable[[], None]] = []
    finder = _KerasFinder(undo)
    sys.meta_path.insert(0, finder)
    if "keras" in sys.modules:
        _patch(sys.modules["keras"], undo)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for one in undo:
            one()


class _KerasFinder(MetaPathFinder):
    """Find Keras as others do, and patch it once it has been imported."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self._undo = undo
        self._is_looking = False

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "keras" or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, self._undo)
        return spec


class _PatchingLoader(Loader):
    """Load Keras by its own loader, then patch it."""

    def __init__(self, loader: Loader, undo: list[Callable[[], None]]) -> None:
        self._loader = loader
        self._undo = undo

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    @override
    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module, self._undo)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _patch(keras: Any, undo: list[Callable[[], None]]) -> None:
    if keras.backend.backend() != "torch":
        return
    model, original = keras.Model, keras.Model.fit
    running: list[Any] = []

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **others: Any) -> Any:
        # Within a shared `fit` it is Keras' own that trains.
        if running or is_asked_for():
            return original(self, *args, **others)
        running.append(self)
        try:
            share = cast("Callable[..., Any]", load(_SHARED_FIT))
            return share(self, original, *args, **others)
        finally:
            running.pop()

    model.fit = fit

    def restore() -> None:
        model.fit = original

    undo.append(restore)
