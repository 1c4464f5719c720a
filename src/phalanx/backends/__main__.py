"""Entry point `python -m phalanx.backends`, started for a backend other than native."""

from phalanx.worker.bootstrap import main

main("phalanx.backends.roles")
