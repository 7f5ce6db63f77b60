"""One-dimensional arrays in NumPy files: written part by part with a digest, checked when they are read."""

import contextlib
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from jaxzoo.whole_files import replacing


class ArrayWriter:
    """Writer of a NumPy file in little memory; made by `writing_array`.

    Attributes:
        digest: SHA-256 of the array's bytes, once the block has ended.
    """

    def __init__(self, file: IO[bytes], dtype: np.dtype):
        self.digest = ""
        self._file, self._dtype = file, dtype
        self._size, self._sha256 = 0, hashlib.sha256()
        file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
        """Adds to the end."""
        data = np.ascontiguousarray(array, self._dtype).data
        self._file.write(data)
        self._sha256.update(data)
        self._size += len(array)

    def finish(self) -> None:
        """Writes the array's final length into the header."""
        self._file.seek(0)
        self._file.write(_header(self._dtype, self._size))
        self.digest: str = self._sha256.hexdigest()


def _header(dtype: np.dtype, size: int) -> bytes:
    """Returns the header of a file, which has 128 bytes for every size: NumPy leaves room for the longest."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (size,)})
    return file.getvalue()


@contextlib.contextmanager
def writing_array(path: Path, dtype: np.dtype) -> Iterator[ArrayWriter]:
    """Gives the writer of a file that exists, whole, when the block ends without an exception."""
    with replacing(path) as place, place.open("wb") as file:
        writer = ArrayWriter(file, dtype)
        yield writer
        writer.finish()


def open_array(file: Path, dtype: np.dtype | str, size: int, *, remedy: str) -> np.ndarray:
    """Returns the array of a file that `ArrayWriter` made, memory-mapped and read-only.

    Raises:
        ValueError: the file is missing, damaged, or holds another array; with the remedy.
    """
    dtype = np.dtype(dtype)
    expected = _header(dtype, size)
    try:
        with file.open("rb") as stream:
            found, n_bytes = stream.read(len(expected)), stream.seek(0, io.SEEK_END)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; {remedy}") from error
    if found != expected or n_bytes != len(expected) + size * dtype.itemsize:
        raise ValueError(f"{file} must hold {dtype}[{size}], but its header or its size says otherwise; {remedy}")
    if size == 0:  # cannot be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(file, dtype, mode="r", offset=len(expected), shape=(size,)))


def require_digest(array: np.ndarray, digest: str, file: Path, *, remedy: str) -> None:
    """Raises `OSError`, with the remedy, unless an array has the digest that its writer gave; 1.7 GB/s.

    Training, which may read a shard at any step, takes a ValueError for a defect of the model's code.
    """
    if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != digest:
        raise OSError(f"{file} is damaged: its content has another digest than was written; {remedy}")
