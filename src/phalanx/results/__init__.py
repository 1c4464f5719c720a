"""Results of a run in Python: weights, a model that predicts, and tables of what was recorded."""
