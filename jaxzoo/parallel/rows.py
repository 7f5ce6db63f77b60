"""Rows of a batch that a process needs, and global arrays made of the rows of all processes.

Both are derived from the sharding: several processes need the same rows if a tensor axis spans them, and the rows of a
process need not be contiguous if the mesh follows a torus.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Sharding

Tree = TypeVar("Tree")


def rows_of_process(sharding: Sharding, n_rows: int) -> list[int] | None:
    """The rows of a batch of `n_rows` on devices of this process, in rising order; None: all, since there are no other
    processes. The first axis of a batch is its rows."""
    if sharding.is_fully_addressable:
        return None
    indices = sharding.addressable_devices_indices_map((n_rows,)).values()
    return sorted({row for index in indices if index for row in range(n_rows)[index[0]]})


def place_rows(batch: Tree, sharding: Sharding, n_rows: int, rows: Sequence[int] | None) -> Tree:
    """Makes global arrays from the rows of each process.

    Args:
      batch: arrays whose first axis are `rows`.
      sharding: sharding of the global arrays.
      n_rows: number of rows of the global arrays.
      rows: result of `rows_of_process`.

    Raises:
      ValueError: the batch has another number of rows.
    """
    if rows is None:
        return jax.device_put(batch, sharding)
    place_of = {row: place for place, row in enumerate(rows)}

    def place(x: jax.Array) -> jax.Array:
        if x.shape[0] != len(rows):
            raise ValueError(f"Dataset.train: a stream of {len(rows)} rows gives {x.shape[0]}; it must return `rows`")
        local = np.asarray(x)

        def shard(index: Any) -> np.ndarray:
            places = [place_of[row] for row in range(n_rows)[index[0]]]
            return local[places][(slice(None), *index[1:])]

        return jax.make_array_from_callback((n_rows, *x.shape[1:]), sharding, shard)

    return jax.tree.map(place, batch)


def place_whole(batch: Tree, sharding: Sharding) -> Tree:
    """Like `place_rows`, for a batch with all rows in every process."""
    n = jax.tree.leaves(batch)[0].shape[0]
    return place_rows(batch, sharding, n, None if sharding.is_fully_addressable else range(n))
