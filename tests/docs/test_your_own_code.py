"""The programs of docs/your_own_code.md. Kills: a program that fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/your_own_code.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


ALONE = [title for title, program in SECTIONS.items() if "os.environ" in program]
"""Programs with settings that JAX reads on import: each needs its own process."""


@pytest.mark.full
@pytest.mark.parametrize("titles", [[title] for title in ALONE] + [[title for title in SECTIONS if title not in ALONE]])
def test_programs(titles, tmp_path):
    """Kills: a program of the page that does not run, or whose assertion does not hold."""
    programs = {title: SECTIONS[title] for title in titles}
    run_all = f"for title, text in {programs!r}.items(): exec(compile(text, title, 'exec'), {{'__name__': '__main__'}})"
    subprocess.run([sys.executable, "-c", run_all], cwd=tmp_path, check=True, timeout=300)


def test_every_program_is_run():
    """Kills: a second program of a section, which no test would run."""
    assert len(SECTIONS) == PAGE.read_text().count("```python") == 8
    assert len(ALONE) == 1
