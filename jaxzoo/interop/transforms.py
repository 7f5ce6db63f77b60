"""Transforms of a tensor of another library to one of ours, and back: views and copies of one tensor, in NumPy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Arrays = tuple[np.ndarray, ...]


class Transform(NamedTuple):
    """A one-to-one map between arrays of theirs and of ours."""

    name: str
    """Name in the report."""
    read: Callable[..., Arrays]
    """Theirs to ours."""
    write: Callable[..., Arrays]
    """Ours to theirs."""


def _single(name: str, read: Callable[[np.ndarray], np.ndarray], write: Callable[[np.ndarray], np.ndarray]):
    return Transform(name, lambda x: (read(x),), lambda x: (write(x),))


SAME = _single("same", lambda x: x, lambda x: x)
TRANSPOSED = _single("transposed", lambda x: x.T, lambda x: x.T)
"""`Linear.weight` (out, in) and a kernel (in, out)."""
CONV = _single("taps", lambda x: x[:, 0, ::-1].T, lambda x: x[::-1].T[:, None])
"""A depthwise `Conv1d.weight` (channels, 1, w), oldest tap first, and taps (w, channels), newest first."""
PLUS_ONE = _single("plus 1", lambda x: x.astype(np.float32) + 1, lambda x: x.astype(np.float32) - 1)
"""The scale of a norm that is stored as its difference to 1 (Gemma, Qwen3-Next)."""
ROW = _single("flattened", lambda x: x.reshape(-1), lambda x: x[None, None])
"""A vector with two leading axes of length 1 (RWKV-4 and 7)."""
ROWS = Transform(
    "one row each", lambda *xs: (np.stack([x.reshape(-1) for x in xs]),), lambda x: tuple(row[None, None] for row in x)
)
"""Several such vectors, and the matrix of which they are the rows (RWKV-7)."""


def split_rows(*sizes: int) -> Transform:
    """Rows of one weight or bias, shared out to several kernels or biases."""
    cuts = list(np.cumsum(sizes)[:-1])
    read = lambda x: tuple(part.T for part in np.split(x, cuts))  # noqa: E731
    return Transform("rows " + "+".join(map(str, sizes)), read, lambda *xs: (np.concatenate([x.T for x in xs]),))


def split_heads(heads: int, *sizes: int) -> Transform:
    """Rows of one weight or bias, which hold for every head parts of these sizes: one kernel or bias a part."""
    cuts = list(np.cumsum(sizes)[:-1])

    def read(x: np.ndarray) -> Arrays:
        parts = np.split(x.reshape(heads, sum(sizes), *x.shape[1:]), cuts, axis=1)
        return tuple(part.reshape(-1, *x.shape[1:]).T for part in parts)

    def write(*xs: np.ndarray) -> Arrays:
        parts = [x.T.reshape(heads, size, *x.T.shape[1:]) for x, size in zip(xs, sizes, strict=True)]
        return (np.concatenate(parts, axis=1).reshape(heads * sum(sizes), *xs[0].T.shape[1:]),)

    return Transform(f"{heads} heads of " + "+".join(map(str, sizes)), read, write)
