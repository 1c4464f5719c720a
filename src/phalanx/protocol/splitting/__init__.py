"""Where the parts of a network go, what then crosses the wire, and who computes what when. Pure.

The workers of a split run and the planner call the same functions: no torch, no clock, no I/O.
"""
