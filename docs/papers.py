"""Writes docs/papers.md, every numbered item of the three papers with file, scale and verdict: `python -m docs.papers`.

`docs/papers.json` lists the items of each paper and rows `[items, subject, file, scale, verdict, tests]`. The scale and
the claims of kept results are read from them; the tests of a file are `test_NAME.py` unless a row names others.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, DATA = ROOT / "docs/papers.md", ROOT / "docs/papers.json"
RESULTS = "experiments/results/"
UNTESTED = ("config only", "left out", "not ", "no claim", "measured", "one seed")
"""First words of verdicts that no test stands for."""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


def page() -> str:
    """Makes the text of the page."""
    parts = [
        "# The three papers, item by item",
        "Every numbered item of the papers that jaxzoo follows: its file, its scale, and its verdict. *Constructed*:\n"
        "weights are set by the proof, or by a shorter one, and tested. *Checked*: the statement is tested on\n"
        "examples, because its proof constructs nothing. *Config only, not trained*: the tests build the\n"
        "model and one training step. Claims are those of the kept results; [Findings](findings.md)\n"
        "has the reasons, and [Theorems as programs](theory.md) the theorems.",
        "(`python -m docs.papers` writes this page from `docs/papers.json` and `experiments/results`.)",
    ]
    for paper, entry in json.loads(DATA.read_text()).items():
        head = "| item | subject | file | scale | verdict |\n| --- | --- | --- | --- | --- |"
        rows = [f"| {' | '.join(cells(row))} |" for row in entry["rows"]]
        parts += [f"## {paper}", entry["title"], "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


def cells(row: list[str]) -> list[str]:
    """Returns the cells of a row."""
    items, subject, file, scale, verdict, *_ = row
    if file.startswith(RESULTS):
        folder = ROOT / file
        found = [claim["verdict"] for claim in json.loads((folder / "claims.json").read_text())]
        about: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
        counts = ", ".join(f"{found.count(each)} {each}" for each in ("held", "not held", "not tested"))
        untuned = "not tuned" if about["untuned"] else ""
        kept = f"claims: {counts}" if found else "table"  # one seed without claims: the row has the verdict
        verdict = "; ".join(filter(None, (f"[{kept}](../{file}/table.md)", untuned if found else "", verdict)))
        return [items, subject, link(about["experiment"]), about["scale"], verdict]
    tests = test_of(row)
    where = f" ([tests](../{tests}))" if tests else ""
    return [items, subject, link(file), scale, f"{verdict}{where}"]


def test_of(row: list[str]) -> str | None:
    """Returns the tests of a row's file, or None where its verdict needs none. Raises `ValueError` if there is none."""
    file, verdict = row[2], row[4]
    if len(row) > 5:
        return row[5]
    if verdict.startswith(UNTESTED):
        return None
    found = sorted((ROOT / "tests").rglob(f"test_{Path(file).stem}.py"))
    if not found:
        raise ValueError(f"docs/papers.json: no tests/**/test_{Path(file).stem}.py; name the tests of {file}")
    return str(found[0].relative_to(ROOT))


def link(file: str) -> str:
    """Returns a link from docs/ to a file of the repository."""
    path = file.removeprefix("docs/") if file.startswith("docs/") else f"../{file}"
    return f"[`{file}`]({path})"


def expand(items: str) -> list[str]:
    """Lists the names in "Figure 1-3; Theorem H.7, H.11"."""
    names = []
    for part in items.split("; "):
        kind, numbers = part.split(" ", 1)
        for number in numbers.split(", "):
            first, _, last = number.partition("-")
            letter, start = re.findall(r"^(|[A-Z]\.|\d+\.)(\d+)$", first)[0]
            stop = int(last.removeprefix(letter)) if last else int(start)
            names += [f"{kind} {letter}{i}" for i in range(int(start), stop + 1)]
    return names


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()  # there are no options
    main()
