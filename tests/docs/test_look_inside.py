"""The script of docs/look_inside.md runs on a freshly trained model, and finds what the page says."""

import re
from pathlib import Path

import pytest

from jaxzoo.cli.train import main as train

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """Kills a page that an interface has left behind, and a model that does not look where it recalls from."""
    config = ["--config", str(ROOT / "configs/mqar/based.py"), "--run-dir", str(tmp_path / "runs/mqar-based")]
    assert train([*config, "--train.steps", "400"]) == 0
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/look_inside.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(code, {})
    recalled, looked, ablated = (int(line.split(":")[1].split()[0]) for line in capsys.readouterr().out.splitlines())
    assert recalled >= 7
    assert looked >= 6
    assert ablated <= 1
