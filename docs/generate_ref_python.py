"""Write docs/ref-python.md from docstrings; run it after changing a public function or class."""

from pathlib import Path

from python_reference import python_page

if __name__ == "__main__":
    Path(__file__).with_name("ref-python.md").write_text(python_page(), encoding="utf-8")
