"""The job file reference agrees with the models."""

import subprocess
import sys
from pathlib import Path

from phalanx.spec import JobSpec, shape
from phalanx.spec.reference import reference_page

PAGE = Path(__file__).parents[3] / "docs" / "ref-job.md"


def test_committed_page_is_up_to_date() -> None:
    wanted = reference_page()
    assert PAGE.read_text(encoding="utf-8") == wanted, "run: python docs/generate_ref_job.py"


def test_every_setting_is_described() -> None:
    page = reference_page()
    seen, waiting = set(), [JobSpec]
    while waiting:
        spec = waiting.pop()
        seen.add(spec)
        for key, field in shape.keys(spec).items():
            if len(shape.names_of(spec)) == 1 and key == "name":
                continue
            assert field.description, f"{spec.__name__}.{key} has no docstring"
            assert f"| `{key}` |" in page
            waiting += [s for s in shape.spec_classes(field.annotation) if s not in seen]
    assert len(seen) > 20


def test_import_stays_light() -> None:
    program = (
        "import sys, phalanx.spec\n"
        "heavy = {'torch', 'numpy', 'ruamel.yaml', 'phalanx.spec.loader'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from phalanx.spec import load_job\n"
        "assert 'torch' not in sys.modules and callable(load_job)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
