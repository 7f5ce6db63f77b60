"""Reader of safetensors files as views of the mapped file.

The library `safetensors` checks the header. Its own tensors are copies; a view reads pages on use.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors

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
    """Returns the tensors of a file as read-only views. Raises `ValueError` if the file is damaged, truncated, or has a
    dtype that is not in `DTYPES`; `OSError` if it cannot be read."""
    try:
        with safetensors.safe_open(file, framework="numpy"):
            pass
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is damaged, cut off, or no safetensors file: {error}") from None
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    ends = sorted(entry["data_offsets"] for entry in header.values())
    if any(begin < end for (_, end), (begin, _) in itertools.pairwise(ends)):
        raise ValueError(f"{file} is damaged: two of its tensors share bytes")
    content = np.memmap(file, np.uint8, mode="r")[8 + length :]
    found = {}
    for name, entry in header.items():
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{file}: {name} has dtype {entry['dtype']!r}; {', '.join(DTYPES)} are read")
        begin, end = entry["data_offsets"]
        found[name] = content[begin:end].view(dtype).reshape(entry["shape"])
    return found
