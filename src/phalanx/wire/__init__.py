"""WIRE: ZeroMQ sockets, framing without pickle, authentication, deadlines, message types.

Nothing here acts on a message; `control`, `comm`, `paramserver` and `worker` do.
"""
