"""The folder of a package that extends Phalanx, as tests put it on the import path."""

from __future__ import annotations

from pathlib import Path

PLUGINS = Path(__file__).parents[1] / "plugins"
