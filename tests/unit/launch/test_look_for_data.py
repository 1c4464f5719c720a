from __future__ import annotations

from pathlib import Path

from phalanx.launch.look_for_data import Place, Search, search


def place(root: Path, name: str = "digits") -> Place:
    return Place(data={"name": name}, root=str(root))


def test_the_first_place_with_the_wanted_samples_counts(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    absent = place(tmp_path, "mnist")
    anything = Search(places=[absent, place(tmp_path)], cache_root=cache, fingerprint=None)
    found = search(anything)
    assert found.place == 1
    assert "was not found" in found.reasons[0]
    again = Search(places=[place(tmp_path)], cache_root=cache, fingerprint=found.fingerprint)
    assert search(again).place == 0
    other = Search(places=[place(tmp_path)], cache_root=cache, fingerprint="of something else")
    assert search(other).place is None
    assert "has other samples than here" in search(other).reasons[0]
