"""How wide the tiles of the Hopper kernels are, by key dim and dtype: what a block's registers and shared memory hold.

A block keeps the state of one head and of a tile of its values in the registers of one warpgroup, float32, 64 rows at
a time:

  bfloat16   k <= 16   153 features, tiles of 64 values: values x features, 64 x 160, in 80 registers a thread;
             k <= 24   325 features, tiles of 32 values: features x values, 384 x 32, in 96;
             k <= 32   561 features, tiles of 32 values: features x values, 576 x 32, in 144;
  float32    k <= 16   153 features, tiles of 32 values: features x values, 192 x 32, in 48.

A tile of values is a block of its own, and repeats the work on weights and features. The other way to halve a state,
half of the features a block, would make every output a sum over blocks: in float32, and through global memory, 4 to 6
times the bytes of the output itself. Above 16 channels the features of a chunk pass through shared memory in pieces of
128 columns, and meet the published state in pieces that leave registers to the rest.

Tensor cores multiply float32 in parts (`mosaic_gpu_parts`): every operand, features and published states among them,
takes twice the shared memory. Pieces of 64 columns and tiles of 32 values make room, at k <= 16; at k = 24 the states
alone would take 96 KB, and the ring 120.
"""

import dataclasses
import functools

import jax.numpy as jnp
from jax.typing import DTypeLike

CHUNK = 64

Cut = tuple[int, int]
"""Columns from, and up to."""


@dataclasses.dataclass(frozen=True)
class Widths:
    """groups: of 8 channels, 2, 3 or 4. Cuts split the columns of the features, as each use takes them."""

    groups: int
    keys: int  # of the tiles of q and k; channels beyond the key dim are 0
    values: int  # of a tile of values
    columns: int  # of the state
    scanned: tuple[Cut, ...]  # pieces that the scan takes in, which are the parts of a state in registers
    read: tuple[Cut, ...]  # ... whose products with the state make outputs; up to the last feature
    pulled: tuple[Cut, ...]  # ... of the cotangents of features
    stages: int  # depth of the TMA ring: loads run stages - 2 chunks ahead, which must hide the latency of memory
    parts: int = 1  # bfloat16 numbers that make an operand of a product: 1 of bfloat16, 2 of float32

    @property
    def dtype(self):
        """Dtype of q, k, v and outputs, and of features in registers."""
        return jnp.bfloat16 if self.parts == 1 else jnp.float32

    @property
    def values_first(self) -> bool:
        """Whether a state is (values, features), not (features, values): wgmma has 64 rows at least."""
        return self.values == CHUNK

    @property
    def state(self) -> tuple[int, int]:
        return (self.values, self.columns) if self.values_first else (self.columns, self.values)

    def part(self, cut: Cut) -> tuple[slice, slice]:
        """Where the columns of a cut are in a state."""
        whole, columns = slice(None), slice(*cut)
        return (whole, columns) if self.values_first else (columns, whole)


def _cuts(*stops: int) -> tuple[Cut, ...]:
    return tuple(zip((0, *stops), stops, strict=False))


WIDTHS = (
    Widths(2, 16, 64, 160, scanned=_cuts(160), read=_cuts(160), pulled=_cuts(96, 160), stages=4),
    Widths(
        3, 32, 32, 384, scanned=_cuts(128, 256, 384), read=_cuts(96, 192, 288, 352),
        pulled=_cuts(*range(64, 321, 64), 352), stages=4,
    ),
    Widths(
        4, 32, 32, 576, scanned=_cuts(*range(128, 513, 128), 576), read=_cuts(*range(64, 577, 64)),
        pulled=_cuts(*range(72, 577, 72)), stages=3,
    ),
    Widths(
        2, 16, 32, 192, scanned=_cuts(64, 128, 192), read=_cuts(64, 128, 160), pulled=_cuts(64, 128, 160), stages=3,
        parts=2,
    ),
)  # fmt: skip
MAX_KEY_DIM = {"bfloat16": 32, "float32": 16}
"""By dtype of q, k and v."""


def widths(key_dim: int, dtype: DTypeLike) -> Widths:
    """Widths for a key dim up to `MAX_KEY_DIM`."""
    return _widths(key_dim, 2 if jnp.dtype(dtype) == jnp.float32 else 1)


@functools.cache
def _widths(key_dim: int, parts: int) -> Widths:
    return next(x for x in WIDTHS if x.parts == parts and key_dim <= 8 * x.groups)


def value_tiles(key_dim: int, value_dim: int, dtype: DTypeLike) -> int:
    """Tiles of values that make a head."""
    return -(-value_dim // widths(key_dim, dtype).values)
