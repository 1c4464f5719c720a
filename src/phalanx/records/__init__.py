"""Record runs: event types, one log per process, the run directory, manifest, summary.

Reports, studies and dashboards read these records alone, never a live process.
"""
