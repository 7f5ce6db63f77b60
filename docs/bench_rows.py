"""Table and picture of the kept rows of `jaxzoo bench` (docs/recall_per_byte.md)."""

from pathlib import Path

from jaxzoo.bench.page import draw, results
from jaxzoo.bench.protocol import V1
from jaxzoo.bench.rows import read_rows
from jaxzoo.mixers import MIXERS
from jaxzoo.utils.figure import save

ROWS, PICTURE = Path("experiments/recall_per_byte/rows"), Path("docs/images/recall-per-byte.png")


def table() -> str:
    """Returns the table of all rows, and draws them."""
    rows = read_rows(ROWS, V1)
    save(draw(rows, V1), PICTURE)
    picture = f"![Pairs recalled against the bytes of the state](images/{PICTURE.name})"
    return f"{picture}\n\n{results(rows, V1, sorted(MIXERS.keys() - {row.name for row in rows}))}"
