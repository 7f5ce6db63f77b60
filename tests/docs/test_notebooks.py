"""Notebooks at a small size. Kills: a cell that fails."""

import json
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/notebooks"
SAID = {
    "look_inside": r"8 pairs: 0\.\d\d right.*without layer 0: \d of 8 right",
    "own_mixer": r"the contract holds.*Slots +accuracy 0\.\d\d, state 16,900 bytes.*DeltaNet accuracy ",
    "convert_transformer": r"there and back: (?:0\.0e\+00|\d\.\de-0[4-9]).*window  4: state  4,108 bytes",
}


def test_notebooks_are_listed_and_hold_no_output():
    """Kills: a notebook that no test runs, outputs that are committed."""
    books = {file.stem: json.loads(file.read_text()) for file in FOLDER.glob("*.ipynb")}
    assert books.keys() == SAID.keys()
    assert not any(cell.get("outputs") for book in books.values() for cell in book["cells"])


@pytest.mark.parametrize("name", [file.stem for file in sorted((FOLDER / "executed").glob("*.md"))])
def test_the_executed_copy_is_of_this_notebook(name):
    """Kills: outputs on the site that other code has made; `python docs/run_notebooks.py NAME` makes the copy again."""
    copy = (FOLDER / f"executed/{name}.md").read_text()
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]:
        assert "".join(cell["source"]).strip() in copy
    assert re.search(SAID[name], copy, re.DOTALL)
    for picture in re.findall(r"\]\((\S+\.png)\)", copy):
        assert (FOLDER / "executed" / picture).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_a_notebook_runs(name, tmp_path, monkeypatch, capsys):
    """Kills: a notebook that uses an old interface."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    small, n = re.subn(r"^STEPS = \d+", "STEPS = 10", code.replace("../..", str(ROOT)), flags=re.MULTILINE)
    assert n == (name != "look_inside")
    with matplotlib.rc_context({"backend": "agg"}):
        exec(small, {})
        plt.close("all")
    assert re.search(SAID[name], capsys.readouterr().out, re.DOTALL)
