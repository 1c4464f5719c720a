"""PLACEMENT of a split network: workers of each part, traffic, order of operations."""
