"""The script of docs/look_inside.md. Kills: a renamed function on the page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_the_script_of_the_page_runs(monkeypatch, capsys):
    """Kills: a page that uses an old interface, and a model that does not look where it recalls from."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/look_inside.md").read_text(), re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(code, {})
    recalled, looked, ablated = (int(line.split(":")[1].split()[0]) for line in capsys.readouterr().out.splitlines())
    assert recalled >= 7
    assert looked >= 6
    assert ablated <= 1
