"""Files that are there whole or not at all: written beside their place, brought to the disk, renamed."""

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np


class ArrayWriter:
    """Writes a one-dimensional array piece by piece to a NumPy file: whole or not at all, in little memory.

    Attributes:
        digest: sha256 of the array's bytes, once the block has ended.

    Args:
        path: the file, there when the block ends without an exception.
        dtype: of the array.
    """

    def __init__(self, path: Path, dtype: np.dtype):
        self.digest = ""
        self._path, self._dtype = path, dtype
        self._size, self._sha256 = 0, hashlib.sha256()

    def __enter__(self) -> "ArrayWriter":
        self._unfinished = unfinished(self._path)
        self._file = self._unfinished.open("wb")
        self._write_header()
        return self

    def append(self, array: np.ndarray) -> None:
        """Adds to the end."""
        data = np.ascontiguousarray(array, self._dtype).data
        self._file.write(data)
        self._sha256.update(data)
        self._size += len(array)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._file.seek(0)
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
        if kind is None:
            os.replace(self._unfinished, self._path)
            self.digest = self._sha256.hexdigest()
        else:
            self._unfinished.unlink(missing_ok=True)

    def _write_header(self) -> None:
        """NumPy leaves room in it for the longest size, so that it has 128 bytes for every size."""
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._size,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file: whole or not at all, the same bytes for the same value."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a text file: whole or not at all."""
    with unfinished(path).open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def unfinished(path: Path) -> Path:
    """Where a file is written before it is renamed: `<name>.<8 digits>.tmp`, another at each call."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
