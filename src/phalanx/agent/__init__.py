"""ONE PROGRAM ON EVERY MACHINE: sent over ssh, one login per machine, orders out and news in.

`ssh` builds the command and explains refusals, `session` is this side of the connection, `remote`
is the program that is sent. Probes and runs use the same session; neither is decided here.
"""
