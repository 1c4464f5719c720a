"""PARAMETERS THAT LIVE ELSEWHERE: shard, server, client, reader, update.

A server owns a contiguous slice of the flat parameters with its optimiser state; workers push
gradients and get parameters back. Which push counts and who waits is decided by `protocol`.
`strategy.push_pull` and `worker.parameter_server` call this.
"""
