"""`python -m phalanx.backends`: what every launcher starts for a backend other than native."""

from phalanx.worker.bootstrap import main

main("phalanx.backends.roles")
