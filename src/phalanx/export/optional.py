"""Import optional packages on use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from phalanx.errors import SpecError


def require(module: str, *, extra: str, use: str) -> ModuleType:
    """Import a module of an optional package.

    Raises:
        SpecError: It is not installed; names the extra to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"{use} needs a package that is not installed ({error.name}); "
            f"get it with: pip install 'phalanx[{extra}]'"
        ) from error
