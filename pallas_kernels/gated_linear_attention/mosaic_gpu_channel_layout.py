"""Hopper kernels with decays per channel: geometry, and the work of warpgroups in the kernel of outputs.

A thread block of that kernel has two warpgroups. With keys of 128 channels each takes half of a chunk's keys; with keys
of 64 each has its own chunks, one at a time in shared memory.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, float_tile, tile
from pallas_kernels.hopper.tiles import meet

PIECE = 8
"""Chunks per thread block, in kernels that process all chunks at once."""
WARPGROUPS = 2


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes: h heads (parts of heads) of values; n chunks; rows and columns: tiles of 64 keys and of 64 values;
    sharing: heads of values per head of q and k; parts: heads of values per head of decays."""

    b: int
    h: int
    n: int
    rows: int
    columns: int
    sharing: int
    parts: int

    def of_keys(self, head):
        return lax.div(head, jnp.int32(self.sharing))

    def of_decay(self, head):
        return lax.div(head, jnp.int32(self.parts))

    @property
    def together(self) -> bool:
        """Whether both warpgroups share a chunk."""
        return self.rows > 1

    @property
    def places(self) -> int:
        """Chunks in shared memory."""
        return 1 if self.together else WARPGROUPS

    @property
    def grid(self) -> dict[str, int]:
        return {"b": self.b, "h": self.h, "piece": -(-self.n // (PIECE * self.places))}

    def widths(self, *names: str) -> dict[str, int]:
        """Tiles of a chunk for each array."""
        others = {"v": self.columns, "states": self.rows * self.columns}
        return {name: others.get(name, self.rows) for name in names}

    def scratch(self, *names: str) -> dict[str, Any]:
        """Shared memory of the arrays, and barriers."""
        widths = self.widths(*names)
        found = {f"{x}_s": (float_tile if x == "decay" else tile)(self.places * n) for x, n in widths.items()}
        found["full"] = plgpu.Barrier(num_arrivals=sum(widths.values()), num_barriers=self.places)
        return found | {"met": plgpu.Barrier(num_arrivals=WARPGROUPS)}


class Stream:
    """Chunks of a warpgroup, of the arrays `names`."""

    def __init__(self, r, g: Geometry, *names: str):
        self.r, self.g, self.names = r, g, names
        self.zero: Any = 0
        self.batch, self.head, piece, self.warpgroup = (lax.axis_index(x) for x in (*g.grid, "warpgroup"))
        self.place = jnp.int32(0) if g.together else self.warpgroup
        first = (piece * g.places + self.place) * PIECE
        self.first, self.count = first, jnp.clip(g.n - first, 0, PIECE)

    def tiles(self, name: str) -> list[Any]:
        """Tiles of the chunk in shared memory; states are (values, keys)."""
        width = self.g.widths(name)[name]
        return [getattr(self.r, f"{name}_s").at[self.place * width + i + self.zero] for i in range(width)]

    def own(self, name: str) -> Any:
        """Tile of the warpgroup's keys."""
        return getattr(self.r, f"{name}_s").at[self.warpgroup + self.zero]

    def rows(self, position):
        """Tokens of a chunk."""
        return pl.ds((self.first + position) * CHUNK, CHUNK)

    def _load(self, position):
        g, batch, head = self.g, self.batch + self.zero, self.head + self.zero
        for name in self.names:
            array, tiles = getattr(self.r, name), self.tiles(name)
            for i, slot in enumerate(tiles):
                if name == "states":
                    row = state_row(g, batch, head, self.first + position) + i * CHUNK
                    source = array.at[pl.ds(row, CHUNK)]
                else:
                    own = {"q": g.of_keys, "k": g.of_keys, "decay": g.of_decay}.get(name, lambda x: x)(head)
                    source = array.at[batch, self.rows(position), own * len(tiles) + i]
                plgpu.copy_gmem_to_smem(source, slot, self.r.full.at[self.place])

    def load(self, position):
        """Loads the chunk at a position, if it exists, into shared memory that is free."""
        wanted = position < self.count
        if self.g.together:
            wanted &= self.warpgroup == 0
        pl.when(wanted)(lambda: self._load(position))

    def wait(self):
        plgpu.barrier_wait(self.r.full.at[self.place])

    def share(self):
        """Waits for the other warpgroup if both share a chunk."""
        if self.g.together:
            meet(self.r.met)


def state_row(g: Geometry, batch, head, n):
    """First row of the tiles of a state, (b h n v/64 k/64 64, 64)."""
    return ((batch * g.h + head) * g.n + n) * (g.columns * g.rows * CHUNK)
