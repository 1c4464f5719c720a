"""The machines: what was declared and what was measured, who is selected, and an emulated cluster.

Runs on the user's machine and reaches the others by the system's ssh. Which strategy suits the
machines is not decided here, and training is not started here.
"""
