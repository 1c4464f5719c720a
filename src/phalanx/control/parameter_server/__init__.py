"""Coordinate parameter-server runs: states, batches, membership, evaluation; no sockets."""
