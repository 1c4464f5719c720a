"""WHO DECIDES DURING THE RUN: facts, pure policies, and the controller, the only one that acts."""
