"""Placement of a split network: who holds which part, what crosses the wire, in which order."""
