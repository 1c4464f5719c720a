"""BYTES BETWEEN PROCESSES: ZeroMQ sockets, framing without pickle, authentication, deadlines.

Nothing here knows what the bytes mean; `control`, `comm`, `paramserver` and `worker` do.
"""
