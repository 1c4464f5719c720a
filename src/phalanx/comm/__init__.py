"""GROUP COMMUNICATION: collectives over all workers of a run, and compression of gradients."""
