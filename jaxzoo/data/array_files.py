"""One-dimensional arrays in NumPy files `NAME.KEY.npy`: written part by part with digests, checked when first read."""

import contextlib
import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from jaxzoo.utils.whole_files import replacing


class ArrayWriter:
    """Writes a NumPy file part by part; made by `writing_arrays`. `digest` is the SHA-256 of the array's bytes once the
    block has ended."""

    def __init__(self, file: IO[bytes], dtype: np.dtype):
        self.digest = ""
        self._file = file
        self._dtype = dtype
        self._size = 0
        self._sha256 = hashlib.sha256()
        file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
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
    """Returns the header of a file: 128 bytes for every size, as NumPy leaves room for the longest."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (size,)})
    return file.getvalue()


@contextlib.contextmanager
def writing_arrays(
    directory: Path, name: str, dtypes: Mapping[str, np.dtype | str]
) -> Iterator[dict[str, ArrayWriter]]:
    """Yields writers by key; the files appear, whole, when the block ends without an exception."""
    with contextlib.ExitStack() as stack:
        writers = {}
        for key, dtype in dtypes.items():
            place = stack.enter_context(replacing(directory / f"{name}.{key}.npy"))
            writers[key] = ArrayWriter(stack.enter_context(place.open("wb")), np.dtype(dtype))
        yield writers
        for writer in writers.values():
            writer.finish()


class ArrayGroup:
    """Memory-mapped, read-only arrays of `writing_arrays`, by key; `kinds` holds their types and sizes. `group[key]`
    compares an array with its digest when it is first read, at 1.7 GB/s. Raises `ValueError` if a file is missing,
    damaged or of another array; `OSError` from `group[key]` if the digest differs (training takes a ValueError for a
    defect of the model's code)."""

    def __init__(
        self,
        directory: Path,
        name: str,
        kinds: Mapping[str, tuple[str, int]],
        digests: Mapping[str, str],
        *,
        remedy: str,
    ):
        self._files = {key: directory / f"{name}.{key}.npy" for key in kinds}
        self._digests = digests
        self._remedy = remedy
        self._arrays = {key: self._open(key, np.dtype(dtype), size) for key, (dtype, size) in kinds.items()}
        self._checked: set[str] = set()

    def __getitem__(self, key: str) -> np.ndarray:
        array = self._arrays[key]
        if key not in self._checked:
            if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != self._digests.get(key, ""):
                rule = "its content has another digest than was written"
                raise OSError(f"{self._files[key]} is damaged: {rule}; {self._remedy}")
            self._checked.add(key)
        return array

    def _open(self, key: str, dtype: np.dtype, size: int) -> np.ndarray:
        file = self._files[key]
        expected = _header(dtype, size)
        try:
            with file.open("rb") as stream:
                found = stream.read(len(expected))
                n_bytes = stream.seek(0, io.SEEK_END)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}; {self._remedy}") from error
        if found != expected or n_bytes != len(expected) + size * dtype.itemsize:
            rule = f"must hold {dtype}[{size}], but its header or its size says otherwise"
            raise ValueError(f"{file} {rule}; {self._remedy}")
        if size == 0:  # cannot be mapped
            return np.zeros(0, dtype)
        return np.asarray(np.memmap(file, dtype, mode="r", offset=len(expected), shape=(size,)))
