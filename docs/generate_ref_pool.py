"""Write docs/ref-pool.md from the models; run it after changing spec/pool.py or cluster.py."""

from pathlib import Path

from pool_reference import pool_page

if __name__ == "__main__":
    Path(__file__).with_name("ref-pool.md").write_text(pool_page(), encoding="utf-8")
