"""THIS MACHINE: what it has, what it allows, and whether that is enough."""
