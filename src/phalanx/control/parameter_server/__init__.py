"""Coordinate parameter servers: states, batches, membership, evaluation; no process, no socket."""
