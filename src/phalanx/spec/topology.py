"""Name the topologies of all-reduce: the one table of them.

A topology of another package is a function, named in a job file as `package.module:function` or by
an entry point of the group `phalanx.topologies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from phalanx.spec.base import Words
from phalanx.spec.registry import Registry


@dataclass(frozen=True)
class TopologyKind:
    """Describe a topology."""

    name: str
    parents: str
    """Import path of a function of the machine of each worker, by rank, as numbers from 0. Returns
    one list per slice: by rank, the worker that each sends its sum to, and -1 for the root."""


TOPOLOGIES: Registry[TopologyKind] = Registry(
    "topology",
    TopologyKind,
    group="phalanx.topologies",
    built_in={
        name: TopologyKind(name, parents=f"phalanx.topology.{name}:{name}_parents")
        for name in ("direct", "ring", "tree", "butterfly", "hierarchical")
    },
    adapt=lambda path, _: TopologyKind(path, parents=path),
)
TopologyName = (
    Literal["direct", "ring", "tree", "butterfly", "hierarchical", "auto"]
    | Annotated[str, AfterValidator(TOPOLOGIES.checked_name), Words("package.module:function")]
)
