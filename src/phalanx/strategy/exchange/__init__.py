"""GRADIENT EXCHANGES: sum gradients over all workers, whole or compressed, one file per kind."""
