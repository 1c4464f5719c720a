"""Numbers: one replica of a model, its flat buffers, loss, optimiser, schedule and precision.

Nothing here knows of other workers; `strategy` moves the flat buffers about. Import the modules
directly: `phalanx.engine.schedule` and `phalanx.engine.precision` have parts that need no torch.
"""
