"""Agent program of a machine that is probed or takes part in a run.

`agent.session` sends the modules below over ssh, so nothing has to be installed there and both
sides always have the same version. Hence they import the standard library and one another alone,
torch only where speed is measured, and parse on Python 3.8. What a launcher says to a fork server,
and where limits are read, is the same on every machine, so three modules more are sent along.
"""

_OWN = ("host", "measure", "install", "outbox", "marked", "files", "child", "processes", "main")
MODULES = (
    "phalanx.cgroup",
    "phalanx.wire.forking",
    "phalanx.wire.fork_client",
    *(f"{__name__}.{name}" for name in _OWN),
)
"""In the order of their imports: they are loaded one after the other on the other side."""
