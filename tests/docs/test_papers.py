"""The page of all numbered items. Kills: an item that is missing, a verdict that its results no longer give."""

import json
from collections import Counter
from pathlib import Path

import pytest

from docs.papers import DATA, PAGE, cells, expand, page

ROOT = Path(__file__).parents[2]
PAPERS = json.loads(DATA.read_text())


def test_the_page_is_up_to_date():
    """Kills: results, items or files that changed after `python -m docs.papers`."""
    assert PAGE.read_text() == page(), "run python -m docs.papers"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_has_one_row(paper):
    """Kills: a theorem, figure or table of the paper without a row, an item in two rows, a name that is no item."""
    rows = Counter(name for row in PAPERS[paper]["rows"] for name in expand(row[0]))
    assert rows == Counter(expand(PAPERS[paper]["items"]))


@pytest.mark.parametrize("paper", PAPERS)
def test_nothing_is_empty_and_every_file_exists(paper):
    """Kills: an empty cell, a file or test that was renamed, a cell that ends the table."""
    for row in PAPERS[paper]["rows"]:
        assert all(cells(row)), row
        assert not any("|" in cell or "\n" in cell for cell in cells(row))
        assert all((ROOT / path).exists() for path in (row[2], *row[5:]))


def test_every_program_of_a_theorem_is_on_the_page():
    """Kills: a new file in `experiments/theory` without a row."""
    helpers = {"__init__", "parameters", "one_layer", "hybrid_recall", "shared_filter_recall"}
    files = {file.stem for file in (ROOT / "experiments/theory").glob("*.py")} - helpers
    listed = {Path(row[2]).stem for paper in PAPERS.values() for row in paper["rows"]}
    assert files <= listed


def test_every_figure_with_kept_results_is_on_the_page():
    """Kills: a figure or table that has been made and still has another verdict; the paper numbers no selective
    copying."""
    kept = {path.name for path in (ROOT / "experiments/results").iterdir()} - {"cat_selective_copy"}
    figures = {name for name in kept if name.startswith(("zoology_", "based_", "cat_"))}
    listed = {part for paper in PAPERS.values() for row in paper["rows"] for part in row[2].split("/")}
    assert figures <= listed


def test_ranges():
    """Kills: a range that loses its last number, or the letter of an appendix."""
    assert expand("Figure 9-11; Lemma H.7, F.2-F.4; Theorem 4.2") == [
        "Figure 9", "Figure 10", "Figure 11", "Lemma H.7", "Lemma F.2", "Lemma F.3", "Lemma F.4", "Theorem 4.2",
    ]  # fmt: skip
