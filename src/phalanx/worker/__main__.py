"""`python -m phalanx.worker`: what every launcher starts."""

from phalanx.worker.bootstrap import main

main("phalanx.worker.roles")
