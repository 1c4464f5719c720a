"""The job file reference agrees with the models."""

import subprocess
import sys
from pathlib import Path

from job_reference import reference_page

from phalanx.spec import shape
from phalanx.spec.job import JobSpec

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
            item = shape.item_annotation(field.annotation)
            found = [*shape.spec_classes(field.annotation), *shape.spec_classes(item)]
            waiting += [spec for spec in found if spec not in seen]
    assert len(seen) > 20


def test_entries_of_lists_and_repeated_parts_lead_somewhere() -> None:
    page = reference_page()
    assert "| `inject` | a list, see [inject](#inject) |" in page
    assert "| `phases` | a list, see below |" in page
    phases = page.split("`strategy.phases`: ")[1].split("\n\n")[1]
    assert (
        "| `strategy` | `single`, `allreduce`, `local_sgd`, `parameter_server`: see [str" in phases
    )
    assert page.count("### `parameter_server`") == 1


def test_import_stays_light() -> None:
    program = (
        "import sys, phalanx.spec\n"
        "heavy = {'torch', 'numpy', 'ruamel.yaml', 'phalanx.spec.loader'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from phalanx.spec.loader import load_job\n"
        "assert 'torch' not in sys.modules and callable(load_job)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
