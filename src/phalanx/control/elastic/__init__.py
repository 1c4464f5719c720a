"""ELASTIC SYNCHRONOUS RUNS · who trains together (membership: pure), and how losses change it."""
