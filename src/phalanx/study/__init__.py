"""MANY RUNS: a matrix of jobs, run unattended, with repeats until the answer is clear."""
