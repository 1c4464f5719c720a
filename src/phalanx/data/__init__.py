"""Input: data sets from their files to batches, as numpy arrays.

Sources decode files, the cache keeps the arrays, shards say who sees what, stages cut, augment and
normalise. `pipeline` is the door that workers and commands use. Nothing here trains or prints.
"""
