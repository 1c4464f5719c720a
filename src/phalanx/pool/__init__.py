"""The machines: what was declared and what was measured, which are selected, an emulated cluster.

Runs on the user's machine and reaches the others through their agents. Which strategy suits the
machines is not decided here, and training is not started here.
"""
