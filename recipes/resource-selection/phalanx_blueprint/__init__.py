"""Read the published blueprint of a resource optimiser as the machines of a pool.

Pool files name it as `inventory: {name: "phalanx_blueprint:BLUEPRINT", file: blueprint.json}`.
"""

from __future__ import annotations

from phalanx.spec.pool import InventoryKind

BLUEPRINT = InventoryKind("blueprint", read="phalanx_blueprint.translate:read_blueprint")
