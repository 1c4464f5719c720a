"""Show the help of commands in plain words: typer marks what needs no mark.

Only its public methods are replaced; `main` makes all commands of these classes.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_values(params: list[Any]) -> list[Any]:
    """Let options that take no value show none."""
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command whose usage reads `JOB`, not `{JOB}`, and whose flags have no `<bool>`."""

    def get_usage(self, ctx: Any) -> str:
        """Return the line of usage."""
        return super().get_usage(ctx).replace("{", "").replace("}", "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return options and arguments, `--help` among them."""
        return _without_values(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of such commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return options, `--help` among them."""
        return _without_values(super().get_params(ctx))


def plain(app: typer.Typer) -> typer.Typer:
    """Make the commands of an application plain ones, before it is built."""
    app.info.cls = PlainGroup
    for command in app.registered_commands:
        command.cls = PlainCommand
    return app
