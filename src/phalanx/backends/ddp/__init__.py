"""DDP BACKEND: torch's DistributedDataParallel as a careful user of torchrun writes it.

A reference for our all-reduce: it uses none of our strategies, and of `engine` only what does not
touch parameters (loss, precision, seeds). Training loop, decoded input, evaluation, records and
checkpoints are those of the native workers, so that a comparison differs in the step alone.
"""
