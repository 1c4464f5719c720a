"""WORKER PROCESSES: bootstrap, the training loop, evaluation, checkpoints.

Started by command (`python -m phalanx.worker`) with a WorkerSpec on standard input; never imported
by the control plane.
"""
