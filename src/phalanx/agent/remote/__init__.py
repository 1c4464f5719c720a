"""Agent program of a machine that is probed or takes part in a run.

`agent.session` sends the modules below over ssh, so nothing has to be installed and both sides
always have the same version. Hence they import only the standard library and one another, torch
only where speed is measured, and parse on Python 3.8.
"""

MODULES = ("host", "measure", "install", "processes", "main")
"""In import order: the loader executes them in sequence."""
