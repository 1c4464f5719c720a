"""PARAMETERS THAT LIVE ELSEWHERE: policies (pure), shards, server, client, update.

A server owns a contiguous slice of the flat parameters with its optimiser state; workers push
gradients and get parameters back. `strategy.parameter_server` and the roles in `worker` call this.
"""
