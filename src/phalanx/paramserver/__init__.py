"""PARAMETER SERVER: shard, server, client, reader, update.

A server owns a contiguous slice of the flat parameters with its optimiser state; workers push
gradients and get parameters back. `consistency` decides which push counts and who waits.
`strategy.push_pull` and `worker.parameter_server` call this.
"""
