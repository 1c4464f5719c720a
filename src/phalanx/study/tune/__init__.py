"""Search the switch share of a job: a pure policy, and the driver that runs its trials."""
