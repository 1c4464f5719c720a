"""GROUP EXCHANGE: collectives over all workers of a run, buckets and compression of gradients."""
