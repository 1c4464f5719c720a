"""A process whose spec is damaged."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_damaged_spec_is_told_without_its_keys() -> None:
    secret = "S3CR3T" * 7
    spec = {"role": "worker", "rank": "no number", "secret_key": secret, "job": {"epochs": secret}}
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.worker"],
        input=json.dumps(spec) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "the spec of this process is none" in done.stderr
    assert "rank: Input should be a valid integer" in done.stderr
    assert secret not in done.stdout + done.stderr
