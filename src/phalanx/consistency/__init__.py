"""CONSISTENCY of parameter servers: pure policies, run by servers and simulator alike."""
