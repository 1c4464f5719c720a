from __future__ import annotations

from pathlib import Path

from pool_reference import CLUSTER_EXAMPLE, POOL_EXAMPLE, pool_page

from phalanx.spec.pool_file import load_cluster, load_pool

PAGE = Path(__file__).parents[3] / "docs" / "ref-pool.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == pool_page(), "run docs/generate_ref_pool.py"


def test_the_examples_are_valid(tmp_path: Path) -> None:
    pool, cluster = tmp_path / "pool.yaml", tmp_path / "cluster.yaml"
    pool.write_text(POOL_EXAMPLE)
    cluster.write_text(CLUSTER_EXAMPLE)
    assert [one.title for one in load_pool(pool).spec.machines] == ["alpha", "beta"]
    assert [one.name for one in load_cluster(cluster).hosts] == ["a", "b"]
