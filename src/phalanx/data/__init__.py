"""Turn data sets from files into batches of numpy arrays.

Sources decode files, the cache stores the arrays, shards assign samples to workers, stages cut,
augment and normalise. Workers and commands call `pipeline`. Nothing here trains or prints.
"""
