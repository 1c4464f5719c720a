"""A job on plain torch: DistributedDataParallel as a careful user of torchrun writes it.

A yardstick for our own all-reduce: it uses none of our strategies, and of `engine` only what does
not touch parameters (loss, precision, seeds). The loop around the steps, the decoded input,
evaluation, records and checkpoints are those of the native workers, so that a comparison differs
in the step alone.
"""
