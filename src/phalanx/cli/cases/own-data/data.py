"""Turn a table into my.npz: all columns but the last are inputs, the last one is the class."""

import sys

import numpy as np

table = np.genfromtxt(sys.argv[1], delimiter=",", skip_header=1)
classes, targets = np.unique(table[:, -1], return_inverse=True)
# Rows in random order: a table is often sorted by class.
order = np.random.default_rng(0).permutation(len(table))
np.savez("my.npz", x=table[order, :-1].astype(np.float32), y=targets[order])
print(f"my.npz: {len(table)} rows, {table.shape[1] - 1} inputs, classes {classes.tolist()}")
