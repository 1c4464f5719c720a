"""Run one agent program per machine: sent over one ssh login, orders out and news in.

`ssh` builds the command and classifies failures, `session` is the local end of the connection,
`remote` is the program that is sent. Probes and runs share the same session; neither is decided
here.
"""
