"""The kept rows of `jaxzoo bench`."""

from pathlib import Path

from docs import bench_rows
from jaxzoo.bench.protocol import V1
from jaxzoo.bench.rows import read_rows
from jaxzoo.bench.sizes import check_sizes
from jaxzoo.mixers import MIXERS


def test_the_page_shows_the_kept_rows(tmp_path, monkeypatch):
    """Kills: a row that breaks the protocol, a size that the mixer no longer has, a table of other rows."""
    rows = read_rows(bench_rows.ROWS, V1)
    assert len(rows) == len(list(bench_rows.ROWS.glob("*.json")))
    for row in rows:
        check_sizes(row, type(MIXERS[row.name]()))
    monkeypatch.setattr(bench_rows, "PICTURE", tmp_path / bench_rows.PICTURE.name)
    text = Path("docs/recall_per_byte.md").read_text()
    assert f"<!-- ROWS -->\n{bench_rows.table()}\n<!-- /ROWS -->" in text, "python -m docs.update_readme"
