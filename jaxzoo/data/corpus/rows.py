"""Rows of parquet and Arrow files, as Hugging Face `datasets` keeps them on disk; a few hundred rows in memory."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxzoo.config_io import nearest
from jaxzoo.data.corpus.lines import DamagedFileError
from jaxzoo.extras import need

TABLES = (".parquet", ".arrow")
"""Endings of these files."""
ROWS_AT_ONCE = 256
"""Rows of parquet that are decoded at once."""


def read_rows(file: Path, columns: Sequence[str], n_before: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number (from 1) and columns of each row after the first `n_before`.

    Args:
        file: parquet, or Arrow as a stream or file of record batches.
        columns: names; no others are read.
        n_before: rows that are skipped.

    Raises:
        DamagedFileError: no such file format, or no such column.
        ValueError: the library is missing.
        OSError: the file cannot be opened.
    """
    need("pyarrow", f"{file.name}", extra="parquet")
    import pyarrow as pa

    with file.open("rb"):  # a missing file is no damaged one
        pass
    first = 1
    try:
        for batch in _batches(file, columns):
            skipped = min(max(n_before + 1 - first, 0), batch.num_rows)
            yield from enumerate(batch.slice(skipped).to_pylist(), first + skipped)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(f"damaged, or no {file.suffix[1:]}: {' '.join(str(error).split())[:200]}") from error


def _batches(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if file.suffix == ".parquet":
        with parquet.ParquetFile(file, memory_map=True) as table:
            _check(table.schema_arrow.names, columns)
            yield from table.iter_batches(ROWS_AT_ONCE, columns=list(columns))
        return
    with pa.memory_map(str(file)) as source:
        try:
            batches = pa.ipc.open_stream(source)
            found = iter(batches)
        except pa.ArrowInvalid:
            batches = pa.ipc.open_file(source)
            found = map(batches.get_batch, range(batches.num_record_batches))
        _check(batches.schema.names, columns)
        for batch in found:
            chosen = batch.select(list(columns))
            starts = range(0, chosen.num_rows, ROWS_AT_ONCE)
            yield from itertools.starmap(chosen.slice, ((start, ROWS_AT_ONCE) for start in starts))


def _check(there: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in there:
            hint = nearest(column, there) or f"; there are {', '.join(there)}"
            raise DamagedFileError(f"no column {column!r}{hint}; --text-field names the column of the text")
