"""Runs the notebooks and writes Markdown copies with their outputs to `docs/notebooks/executed`, which the site shows.

`pip install nbconvert ipykernel`, then `python docs/run_notebooks.py [NAME ...]`; all take ten CPU minutes.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/notebooks"
OUT = FOLDER / "executed"


def run(name: str) -> None:
    """Runs a notebook in a temporary folder from which `../../experiments` is found, and writes its copy."""
    book = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "experiments").symlink_to(ROOT / "experiments")
        place = Path(scratch) / "docs/notebooks"
        place.mkdir(parents=True)
        NotebookClient(book, timeout=None, resources={"metadata": {"path": str(place)}}).execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    pictures = {"unique_key": name, "output_files_dir": f"{name}_files"}
    text, resources = MarkdownExporter().from_notebook_node(book, resources=pictures)
    for file, content in resources["outputs"].items():
        (OUT / file).parent.mkdir(parents=True, exist_ok=True)
        (OUT / file).write_bytes(content)
    (OUT / f"{name}.md").write_text("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for name in sys.argv[1:] or sorted(file.stem for file in FOLDER.glob("*.ipynb")):
        run(name)
