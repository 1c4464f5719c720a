"""Plan a job: calibrate, predict, search, explain. Pure functions, no torch.

Facts about machines, links and the job go in; candidates with predicted time, cost and energy come
out, and one of them is chosen with reasons. Only `calibrate` reads files (run directories) and only
`planfile` writes one. Called by `api` and `cli`; nothing here starts a process.
"""
