"""One-dimensional arrays in files, with digests: written piece by piece, checked when they are read."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from jaxzoo.whole_files import replacing


class ArrayWriter:
    """Writes to a NumPy file in little memory; made by `writing_array`.

    Attributes:
        digest: sha256 of the array's bytes, once the block has ended.
    """

    def __init__(self, file: IO[bytes], dtype: np.dtype):
        self.digest = ""
        self._file, self._dtype = file, dtype
        self._size, self._sha256 = 0, hashlib.sha256()
        self._write_header()

    def append(self, array: np.ndarray) -> None:
        """Adds to the end."""
        data = np.ascontiguousarray(array, self._dtype).data
        self._file.write(data)
        self._sha256.update(data)
        self._size += len(array)

    def finish(self) -> None:
        """Writes the array's final length into the header."""
        self._file.seek(0)
        self._write_header()
        self.digest = self._sha256.hexdigest()

    def _write_header(self) -> None:
        """NumPy leaves room in it for the longest size, so that it has 128 bytes for every size."""
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._size,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def require_digest(array: np.ndarray, digest: str, file: Path, remedy: str) -> None:
    """Raises `ValueError`, with the remedy, unless an array of a file has the digest that its writer gave.

    Cost: about a second for every 1.5 GB, and as much reading from the disk.
    """
    if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != digest:
        raise ValueError(f"{file} is damaged: its content has another digest than was written; {remedy}")


@contextlib.contextmanager
def writing_array(path: Path, dtype: np.dtype) -> Iterator[ArrayWriter]:
    """Gives the writer of a file that is there, whole, when the block ends without an exception."""
    with replacing(path) as place, place.open("wb") as file:
        writer = ArrayWriter(file, dtype)
        yield writer
        writer.finish()
