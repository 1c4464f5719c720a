"""PROCESSES OF A SWITCHED RUN: one strategy after another without a restart.

Called by `worker.roles`; runs the loop of synchronous phases and the workers, servers and evaluator
of `worker.parameter_server`.
"""
