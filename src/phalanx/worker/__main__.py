"""Entry point `python -m phalanx.worker`, which every launcher starts."""

from phalanx.worker.bootstrap import main

main("phalanx.worker.roles")
