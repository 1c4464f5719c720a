"""Freed memory is used again instead of being asked for anew."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from phalanx.engine.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

layers = [torch.nn.Conv2d(3, 16, 3), *(torch.nn.Conv2d(16, 16, 3) for _ in range(4))]
model = torch.nn.Sequential(*layers)
images = torch.zeros(64, 3, 32, 32)

def step():
    model(images).sum().backward()

if sys.argv[1] == "keep":
    assert keep_freed_memory()
step()
step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""


# glibc moves its limits with what a program frees, and with luck keeps everything: hold them at the
# values it starts with, so that only the call under test can change them.
FIRST_LIMITS = ["env", "MALLOC_MMAP_THRESHOLD_=131072", "MALLOC_TRIM_THRESHOLD_=131072"]


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [*FIRST_LIMITS, sys.executable, "-c", SCRIPT, mode],
        timeout=60,
        check=True,
        capture_output=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_steps_fault_in_far_fewer_pages() -> None:
    # The system may take pages back meanwhile if others need them: the calmest of three counts.
    kept = min(page_faults("keep") for _ in range(3))
    usual = page_faults("usual")
    assert kept < usual / 10, (kept, usual)
