"""STRATEGIES: what one training step exchanges with other workers, behind one interface."""
