"""The programs of docs/your_own_code.md. Kills: a program that fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/your_own_code.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.full
@pytest.mark.parametrize("section", SECTIONS)
def test_program(section, tmp_path):
    """Kills: a program of the page that does not run, or whose assertion does not hold."""
    subprocess.run([sys.executable, "-c", SECTIONS[section]], cwd=tmp_path, check=True, timeout=300)


def test_every_program_is_run():
    """Kills: a second program of a section, which no test would run."""
    assert len(SECTIONS) == PAGE.read_text().count("```python") == 8
