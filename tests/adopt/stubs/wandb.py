"""A tracker that tracks nothing."""


def init(**options):
    assert options.get("mode") in (None, "disabled")


def log(values):
    pass
