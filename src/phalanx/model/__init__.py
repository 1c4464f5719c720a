"""The built-in networks, and the door to a user's own.

`catalogue.build_model` is what other packages call. Each network is a module of its own that is
imported when it is asked for. Training lives in `engine`. Nothing is
imported here, so that `user` and `shape` serve peers that have no use for torch.
"""
