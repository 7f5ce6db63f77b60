"""Tables and pictures of docs/data.md and docs/recall.md, from what the commands in docs/recall.md have written.

Reads `corpora/recall`, `corpora/demo_statistics`, `corpora/records` and `benchmarks/results/token-input-cpu.json`.
"""

import json
import shutil
from pathlib import Path

from benchmarks import token_input

RECORD_MODELS = {"attention": "attention", "based": "Based", "base_conv": "BaseConv"}
CORPORA, IMAGES = Path("corpora"), Path("docs/images")
RESULT = Path("benchmarks/results/token-input-cpu.json")


def recall_slices() -> str:
    """The slices of the three models and the shares of the gaps, with their picture."""
    return _with_pictures(CORPORA / "recall", {"recall.png": "Log-perplexity of repeated and other bigrams"})


def recall_statistics() -> str:
    """Table of repeated n-grams by count and distance, with the pictures after Figures 3 and 4."""
    pictures = {
        "distances.png": "Distances between repeated n-grams",
        "repeats_by_source.png": "Repeated bigrams by subset",
    }
    return _with_pictures(CORPORA / "demo_statistics", pictures)


def records() -> str:
    """Table of the models' answers in the extraction task, next to guesses."""
    manifest = json.loads((CORPORA / "records" / "manifest.json").read_text())
    rows = [
        (f"guess: {name.replace('_', ' ')}", f"{100 * value:.1f} %", "")
        for name, value in manifest["baselines"].items()
    ]
    for name, title in RECORD_MODELS.items():
        report = json.loads((CORPORA / "records" / f"{name}.json").read_text())
        found = report["results"]["records"]
        share = f"{100 * found['contains']:.1f} % ± {100 * found['contains_stderr']:.1f}"
        rows.append((title, share, f"{found['n']:,}"))
    lines = [f"| {' | '.join(row)} |" for row in [("model", "values found", "questions"), ("---", "---", "---"), *rows]]
    return "\n".join(lines)


def token_input_rate() -> str:
    """Tokens a second of the stream of batches."""
    report = json.loads(RESULT.read_text())
    where = f"{report['machine']}, {report['date']}, {report['commit']}"
    return f"{token_input.table(report)}\n\n({where}; `python -m benchmarks.token_input`)"


def _with_pictures(folder: Path, pictures: dict[str, str]) -> str:
    """`table.md` of a folder, and its pictures, copied next to the pages."""
    text = (folder / "table.md").read_text().strip()
    lines = []
    for name, what in pictures.items():
        copy = IMAGES / f"recall-{name}" if not name.startswith("recall") else IMAGES / name
        shutil.copyfile(folder / name, copy)
        lines += ["", f"![{what}](images/{copy.name})"]
    return "\n".join([text, *lines])
