"""PYTHON AND NOTEBOOKS: what `import phalanx` offers; files, paths and functions of a cell as jobs.

`api` is the façade behind it, with specs and paths in and records out, which the commands use too.
"""
