"""Observe this machine: resources, limits, use, and energy."""
