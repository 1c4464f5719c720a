"""PROCESSES OF A RUN WITH PARAMETER SERVERS: worker, server, evaluator.

Called by `worker.roles`, and by `worker.switch` in phases that have servers.
"""
