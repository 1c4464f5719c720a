"""Phalanx trains neural networks across the ordinary machines that people already have."""

from phalanx._version import __version__

__all__ = ["__version__"]
