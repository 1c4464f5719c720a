"""The built-in networks, and the door to a user's own.

`build_model` and `count_parameters` are all that other packages call. Each network lives in a
module of its own that is imported when it is asked for. Training lives in `engine`.
"""

from phalanx.model.catalogue import build_model
from phalanx.model.count import ParameterCount, count_parameters

__all__ = ["ParameterCount", "build_model", "count_parameters"]
