"""WHAT HAPPENED: event types, one log per process, the run directory, manifest, summary.

Everything that reports, studies and dashboards show is read from here; nobody asks a live object.
"""
