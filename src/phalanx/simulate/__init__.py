"""Simulate runs of hundreds of workers in virtual time, with stragglers and crashes. No torch.

Servers run the same policies as real ones (`protocol`); machines, links and costs are those of the
planner (`plan`). Equal seeds give equal runs.
"""
