"""NETWORKS: the built-in ones, and the import of a user's.

`catalogue.build_model` is what other packages call. Each network is a separate module, imported on
first use; training is in `engine`. Nothing is imported here, so that `user` and `shape` serve
backends without torch.
"""
