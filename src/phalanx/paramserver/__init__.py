"""PARAMETERS THAT LIVE ELSEWHERE: shard, server, client, update.

A server owns a contiguous slice of the flat parameters with its optimiser state; workers push
gradients and get parameters back. Who may do what, and when, is `protocol`'s business.
`strategy.push_pull` and the roles in `worker` call this.
"""
