"""Define what all events of a run have in common."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, tag_field="kind", tag=str.lower, kw_only=True, omit_defaults=True):
    """Fields of all events; the log fills in the time stamps."""

    wall_s: float = 0.0
    mono_s: float = 0.0
