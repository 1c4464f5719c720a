"""What the update rules must not drag in."""

import subprocess
import sys

SCRIPT = """
import sys
import torch
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.spec.optimize import AdadeltaSpec, AdagradSpec, AdamSpec, AdamwSpec, SgdSpec
for spec in (SgdSpec(), AdagradSpec(), AdadeltaSpec(), AdamSpec(), AdamwSpec()):
    FlatOptimizer(spec, torch.ones(4)).step(torch.ones(4), 0.1)
sys.exit("torch._dynamo" in sys.modules)
"""


def test_no_rule_imports_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], timeout=60, check=False)
    assert done.returncode == 0
