"""Search for the switch share of a job: pure policy, and the driver that runs its trials."""
