"""Pools from Python values, read as the files of users are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from phalanx.spec.pool_file import PoolFile, load_pool


def pool_from_mapping(mapping: Mapping[str, object]) -> PoolFile:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pool.yaml"
        path.write_text(json.dumps(mapping))
        return load_pool(path)
