from __future__ import annotations

from pathlib import Path

from phalanx.launch.data_lookup import DataLocation, DataQuery, search


def location(root: Path, name: str = "digits") -> DataLocation:
    return DataLocation(data={"name": name}, root=str(root))


def test_the_first_place_with_the_wanted_samples_counts(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    absent = location(tmp_path, "mnist")
    anything = DataQuery(locations=[absent, location(tmp_path)], cache_root=cache, fingerprint=None)
    found = search(anything)
    assert found.location == 1
    assert "was not found" in found.reasons[0]
    again = DataQuery(
        locations=[location(tmp_path)], cache_root=cache, fingerprint=found.fingerprint
    )
    assert search(again).location == 0
    other = DataQuery(
        locations=[location(tmp_path)], cache_root=cache, fingerprint="of something else"
    )
    assert search(other).location is None
    assert "has other samples than here" in search(other).reasons[0]
