"""Parquet and Arrow files as documents. Kills: rows lost at the edge of a batch."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from jaxzoo.data.corpus.documents import DocumentFields, Skipped, find_source_files, read_documents
from jaxzoo.data.corpus.lines import read_rows

FIELDS = DocumentFields("text", "meta.set")
ROWS = [{"id": i, "text": f"document {i} ä", "meta": {"set": f"s{i % 3}"}} for i in range(700)]


def write(folder, kind, rows=ROWS):
    """The rows as a file of a kind, in batches of 90."""
    folder.mkdir(exist_ok=True)
    table, file = pa.Table.from_pylist(rows), folder / f"data-00000-of-00001.{kind.split('-')[0]}"
    if kind == "parquet":
        parquet.write_table(table, file, row_group_size=300)
        return file
    make = pa.ipc.new_stream if kind == "arrow-stream" else pa.ipc.new_file
    with pa.OSFile(str(file), "wb") as sink, make(sink, table.schema) as out:
        for batch in table.to_batches(90):
            out.write_batch(batch)
    return file


@pytest.mark.parametrize("kind", ["parquet", "arrow-stream", "arrow-file"])
def test_documents_in_their_order(kind, tmp_path):
    """Kills: a row at the edge of a batch that is lost or given twice, a struct that is not looked into, a place in the
    file that is not the row's."""
    file = write(tmp_path / "d", kind)
    found = read_documents([file], FIELDS, Skipped())
    assert [(each.text, each.subset) for each in found] == [(row["text"], row["meta"]["set"]) for row in ROWS]
    assert [number for number, _ in read_rows(file, ["id"])] == list(range(1, 701))


def test_damage_is_named(tmp_path):
    """Kills: a traceback of the library, a null that becomes a text, a cache that is read, splits that are joined."""
    rows = [*ROWS[:2], {**ROWS[2], "text": None}, ROWS[3]]
    file = write(tmp_path / "d", "parquet", rows)
    with pytest.raises(ValueError, match=r"parquet:3: field 'text' must be a string, got null; --skip-bad"):
        list(read_documents([file], FIELDS, Skipped()))
    skipped = Skipped()
    assert len(list(read_documents([file], FIELDS, skipped, skip_bad=True))) == 3
    assert skipped.lines == 1
    with pytest.raises(ValueError, match="no column 'txt'; did you mean 'text'"):
        list(read_documents([file], DocumentFields("txt"), Skipped()))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="after line 0: damaged, or no parquet"):
        list(read_documents([file], FIELDS, Skipped()))
    (tmp_path / "d" / "cache-1.arrow").touch()
    assert list(find_source_files("parquet", str(tmp_path / "d"))) == [file.name]
    (tmp_path / "dataset_dict.json").touch()
    with pytest.raises(ValueError, match="holds the splits d; name each by itself"):
        find_source_files("parquet", str(tmp_path))


def test_memory_is_flat(tmp_path):
    """Kills: a file or a row group that is decoded as a whole."""
    text = "0123456789abcdef" * 1024
    peaks = []
    for n in (1000, 4000):
        file = tmp_path / f"{n}.parquet"
        rows = [{"text": f"{i}{text}", "meta": {"set": "s"}} for i in range(n)]
        parquet.write_table(pa.Table.from_pylist(rows), file, compression="zstd", use_dictionary=False)
        del rows
        before, peak = pa.total_allocated_bytes(), 0
        for document in read_documents([file], FIELDS, Skipped()):
            assert document.text.endswith(text)
            peak = max(peak, pa.total_allocated_bytes() - before)
        peaks.append(peak)
    assert peaks[1] < 1.2 * peaks[0], peaks
