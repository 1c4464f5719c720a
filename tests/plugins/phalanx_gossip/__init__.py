"""A package of somebody else: a strategy that Phalanx does not know."""
