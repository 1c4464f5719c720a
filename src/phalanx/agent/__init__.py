"""Run one agent program per machine: sent over one line, orders out and news in.

`line` is what carries the bytes: a command (`piped`, of which `ssh`, `srun` and `kubectl` are the
routes) or a call from the other side (`dialled`, `dial`). `session` is the local end of the
connection, `remote` is the program that is sent. Probes and runs share the same session; neither is
decided here.
"""
