"""GROUP COMMUNICATION: collectives over all workers of a run, and numbers in few bits."""
