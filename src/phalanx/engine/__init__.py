"""COMPUTATION: one replica of a model, its flat buffers, loss, optimiser, schedule, precision.

Nothing here depends on other workers; `strategy` exchanges the flat buffers. Import the modules
directly: `phalanx.engine.schedule` and `phalanx.engine.precision` have parts that need no torch.
"""
