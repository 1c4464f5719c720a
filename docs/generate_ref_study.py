"""Write docs/ref-study.md from the models; run it after changing spec/study.py."""

from pathlib import Path

from study_reference import study_page

if __name__ == "__main__":
    Path(__file__).with_name("ref-study.md").write_text(study_page(), encoding="utf-8")
