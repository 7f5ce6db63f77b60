"""Reader and writer of safetensors files, tensor by tensor.

A file is the length of its header (8 bytes), the header (JSON: dtype, shape and place of every tensor), and the
numbers. Reading gives views of the mapped file, bfloat16 included, of which a page is read when its numbers are;
writing holds one tensor at a time. The library of the format copies whole tensors both ways.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxzoo.config.json_files import parse_json
from jaxzoo.utils.whole_files import replacing

DTYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, as read-only views of it.

    Raises:
      ValueError: the file is damaged or cut off, or has a dtype that is not in `DTYPES`.
      OSError: it cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{file} is cut off, or no safetensors file: its header would have {length:,} bytes")
        header = parse_json(opened.read(length), dict, where=f"{file}: header", remedy="the file is damaged")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if not entries:
        return {}
    content = np.memmap(file, np.uint8, mode="r")[8 + length :]
    return {name: _view(file, name, entry, content) for name, entry in entries.items()}


def write_safetensors(
    file: Path, tensors: Iterable[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]], dtype: Any
) -> None:
    """Writes tensors of one dtype (name, shape, and what makes the array) one by one; the file is whole, or not there.

    Raises:
      OSError: it cannot be written.
    """
    name_of = {value: key for key, value in DTYPES.items()}[np.dtype(dtype)]
    entries, tensors, at = {}, list(tensors), 0
    for name, shape, _ in tensors:
        n = math.prod(shape) * np.dtype(dtype).itemsize
        entries[name] = {"dtype": name_of, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with replacing(file) as place, place.open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        for name, shape, make in tensors:
            array = np.ascontiguousarray(make(), dtype)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, not {shape}")
            opened.write(array.reshape(-1).view(np.uint8))


def _view(file: Path, name: str, entry: Any, content: np.ndarray) -> np.ndarray:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        dtype = DTYPES.get(kind)
        sizes = all(type(n) is int and 0 <= n < 2**62 for n in (*shape, begin, end))
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"{file}: the header's entry of {name} is damaged") from None
    if dtype is None:
        raise ValueError(f"{file}: {name} has dtype {kind!r}; {', '.join(DTYPES)} are read")
    if not sizes or begin > end or end - begin != math.prod(shape) * dtype.itemsize:
        place = f"of shape {list(shape)} cannot fill bytes {begin} to {end}"
        raise ValueError(f"{file}: {name} {place}: the file is damaged")
    if end > content.size:
        raise ValueError(f"{file} is cut off: {name} ends at byte {end:,} of its numbers, and it has {content.size:,}")
    return content[begin:end].view(dtype).reshape(shape)
