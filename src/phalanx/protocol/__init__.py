"""WHO MAY DO WHAT, WHEN: the pure half of parameter servers, shared by servers and planner.

Rules, the policy that follows them, the credit of a dynamic bound, and how the parameters are cut.
No torch, no clock, no I/O: `paramserver` runs them behind sockets, `simulate` runs the very
same classes in virtual time.
"""
