"""Hopper kernels of decays per channel: their sizes, and which warpgroup of the kernel of outputs takes what.

A thread block of that kernel has two warpgroups. With keys of 128 channels they take the halves of a chunk's keys, one
chunk after another; with keys of 64 each has chunks of its own, and a place in shared memory for one of them.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, float_tile, tile

PIECE = 8
"""Chunks in turn, of kernels that take all chunks at once."""
WARPGROUPS = 2


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes: h heads of values, each a part of one of the call; n chunks; rows and columns, tiles of 64 keys and of 64
    values; sharing, heads of values to one of q and k; parts, to one of decays."""

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
        """Whether both warpgroups take the same chunks."""
        return self.rows > 1

    @property
    def places(self) -> int:
        """Chunks in shared memory."""
        return 1 if self.together else WARPGROUPS

    @property
    def grid(self) -> dict[str, int]:
        return {"b": self.b, "h": self.h, "piece": -(-self.n // (PIECE * self.places))}

    def widths(self, *names: str) -> dict[str, int]:
        """Tiles of a chunk of each of the arrays."""
        others = {"v": self.columns, "states": self.rows * self.columns}
        return {name: others.get(name, self.rows) for name in names}

    def scratch(self, *names: str) -> dict[str, Any]:
        """Shared memory of the arrays, their barriers, and those of `Stream.meet`."""
        widths = self.widths(*names)
        found = {f"{x}_s": (float_tile if x == "decay" else tile)(self.places * n) for x, n in widths.items()}
        found["full"] = plgpu.Barrier(num_arrivals=sum(widths.values()), num_barriers=self.places)
        return found | {"met": plgpu.Barrier(num_arrivals=WARPGROUPS)}


class Stream:
    """The chunks of a warpgroup, of the arrays `names`."""

    def __init__(self, r, g: Geometry, *names: str):
        self.r, self.g, self.names = r, g, names
        self.zero: Any = 0
        self.batch, self.head, piece, self.warpgroup = (lax.axis_index(x) for x in (*g.grid, "warpgroup"))
        self.place = jnp.int32(0) if g.together else self.warpgroup
        first = (piece * g.places + self.place) * PIECE
        self.first, self.count = first, jnp.clip(g.n - first, 0, PIECE)

    def tiles(self, name: str) -> list[Any]:
        """Those of the chunk in shared memory; states (values, keys) by values."""
        width = self.g.widths(name)[name]
        return [getattr(self.r, f"{name}_s").at[self.place * width + i + self.zero] for i in range(width)]

    def own(self, name: str) -> Any:
        """That of the keys of the warpgroup."""
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
        """Fills the place, which everyone has left, with the chunk at a position, if there is one."""
        wanted = position < self.count
        if self.g.together:
            wanted &= self.warpgroup == 0
        pl.when(wanted)(lambda: self._load(position))

    def wait(self):
        plgpu.barrier_wait(self.r.full.at[self.place])

    def meet(self):
        """Waits for the other warpgroup."""
        plgpu.barrier_arrive(self.r.met)
        plgpu.barrier_wait(self.r.met)

    def share(self):
        """Waits for the other warpgroup where both have a chunk."""
        if self.g.together:
            self.meet()


def state_row(g: Geometry, batch, head, n):
    """First row of the tiles of a state, (b h n v/64 k/64 64, 64)."""
    return ((batch * g.h + head) * g.n + n) * (g.columns * g.rows * CHUNK)
