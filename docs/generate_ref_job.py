"""Write docs/ref-job.md from the models; run it after changing anything in src/phalanx/spec."""

from pathlib import Path

from job_reference import reference_page

if __name__ == "__main__":
    Path(__file__).with_name("ref-job.md").write_text(reference_page(), encoding="utf-8")
