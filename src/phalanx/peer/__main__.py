"""`python -m phalanx.peer`: what every launcher starts for a backend other than native."""

from phalanx.worker.bootstrap import main

main("phalanx.peer.roles")
