"""WHO EXCHANGES WHAT, WHEN: one step of training under each strategy, behind one interface."""
