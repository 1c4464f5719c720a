"""Describe pools of machines: declarations, probes, selection, and an emulated cluster.

Runs on the user's machine and reaches the others through their agents. Choosing a strategy and
starting training happen elsewhere.
"""
