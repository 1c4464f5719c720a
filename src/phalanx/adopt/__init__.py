"""Make single-machine training scripts distributed, or say line by line what stands in the way."""
