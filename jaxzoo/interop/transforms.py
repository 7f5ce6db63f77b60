"""Transforms between tensors of other libraries and ours: views and copies in NumPy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Arrays = tuple[np.ndarray, ...]


class Transform(NamedTuple):
    """One-to-one map between arrays of a checkpoint and ours."""

    name: str
    """Name in the report."""
    read: Callable[..., Arrays]
    """Maps the checkpoint's arrays to ours."""
    write: Callable[..., Arrays]
    """Maps our arrays to the checkpoint's."""


def _single(name: str, read: Callable[[np.ndarray], np.ndarray], write: Callable[[np.ndarray], np.ndarray]):
    return Transform(name, lambda x: (read(x),), lambda x: (write(x),))


SAME = _single("same", lambda x: x, lambda x: x)
TRANSPOSED = _single("transposed", lambda x: x.T, lambda x: x.T)
"""`Linear.weight` (out, in) and a kernel (in, out)."""
CONV = _single("taps", lambda x: x[:, 0, ::-1].T, lambda x: x[::-1].T[:, None])
"""A depthwise `Conv1d.weight` (channels, 1, w), oldest tap first, and taps (w, channels), newest first."""
ONE_MINUS = _single("1 minus", lambda x: 1 - x.astype(np.float32), lambda x: 1 - x.astype(np.float32))
"""Weight of the previous token in a token shift, and of the token itself."""
PLUS_ONE = _single("plus 1", lambda x: x.astype(np.float32) + 1, lambda x: x.astype(np.float32) - 1)
"""Scale of a norm that is stored as its difference from 1 (Gemma, Qwen3-Next)."""
ROW = _single("flattened", lambda x: x.reshape(-1), lambda x: x[None, None])
"""Vector with two leading axes of length 1 (RWKV-4 and 7)."""
ROWS = Transform(
    "one row each", lambda *xs: (np.stack([x.reshape(-1) for x in xs]),), lambda x: tuple(row[None, None] for row in x)
)
"""Several such vectors, and the matrix of which they are the rows (RWKV-7)."""


def joined_taps(*sizes: int) -> Transform:
    """Joins the taps of depthwise convolutions of so many channels."""
    cuts = list(np.cumsum(sizes)[:-1])
    join = lambda *xs: (np.concatenate([CONV.read(x)[0] for x in xs], axis=1),)  # noqa: E731
    return Transform("taps, joined", join, lambda x: tuple(CONV.write(y)[0] for y in np.split(x, cuts, axis=1)))


def split_rows(*sizes: int) -> Transform:
    """Splits the rows of one weight or bias into several kernels or biases."""
    cuts = list(np.cumsum(sizes)[:-1])
    read = lambda x: tuple(part.T for part in np.split(x, cuts))  # noqa: E731
    return Transform("rows " + "+".join(map(str, sizes)), read, lambda *xs: (np.concatenate([x.T for x in xs]),))


def split_heads(heads: int, *sizes: int) -> Transform:
    """Splits the rows of one weight or bias, which hold parts of these sizes per head: one kernel or bias per part."""
    cuts = list(np.cumsum(sizes)[:-1])

    def read(x: np.ndarray) -> Arrays:
        parts = np.split(x.reshape(heads, sum(sizes), *x.shape[1:]), cuts, axis=1)
        return tuple(part.reshape(-1, *x.shape[1:]).T for part in parts)

    def write(*xs: np.ndarray) -> Arrays:
        parts = [x.T.reshape(heads, size, *x.T.shape[1:]) for x, size in zip(xs, sizes, strict=True)]
        return (np.concatenate(parts, axis=1).reshape(heads * sum(sizes), *xs[0].T.shape[1:]),)

    return Transform(f"{heads} heads of " + "+".join(map(str, sizes)), read, write)
