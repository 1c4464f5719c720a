"""Run a user's own training script as a worker: `phalanx.session()` and what is behind it.

The script keeps its loop, model and optimiser. It runs in one greenlet, the training loop of
`worker` in another, and they take turns at `next(feed)` and at the end of `loss.backward()`.
"""
