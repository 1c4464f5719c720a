"""Implement the commands; only this package prints, reads the environment and sets exit codes.

Modules with a command import at their top only what `phalanx --help` needs; the rest is imported
when the command runs, so that help appears at once.
"""
