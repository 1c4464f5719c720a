"""OTHER BACKENDS: the same job, data and records, run by TensorFlow or by plain torch DDP.

Beside `worker`, whose bootstrap, context and metrics it shares. Not imported by other packages:
launchers start `python -m phalanx.backends` by name.
"""
