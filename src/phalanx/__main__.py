"""Let `python -m phalanx` do what the command `phalanx` does."""

from phalanx.cli.main import run

run()
