"""COMMANDS: the only place that prints, reads the environment and turns errors into exit codes.

Modules with a command import at their top only what `phalanx --help` needs; the rest is imported
when the command runs, so that help appears at once.
"""
