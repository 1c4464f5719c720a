"""WHO MAY DO WHAT, WHEN: the pure half of parameter servers, shared by servers and planner.

Rules, the policy that follows them, and the credit of a dynamic bound. No torch, no clock, no I/O:
`paramserver` runs them behind sockets, `plan.simulate` runs the very same classes in made-up time.
"""
