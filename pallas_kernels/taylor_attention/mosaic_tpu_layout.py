"""Geometry of the TPU kernels of Taylor attention: groups of heads, blocks and chunks of tokens.

Heads stay packed on the last axis, q, k: (b, t, h*k), v, y: (b, t, h*v), as projections produce them: an array whose
last dimension is 16 occupies 128 lanes a row on a TPU, eight times its size. One grid step (b, head group, block) reads
a group of heads, 8 x 16 = 128 lanes for k = 16, and takes the chunks of its block one after the other. In HBM

  den        (b, groups, heads, time) float32: time on the lanes, for the reason above
  state      [S | z | 0]^T: (b, heads, value rows, feature rows) float32, features in the order of
             `mosaic_tpu_rotations.py`; in VMEM over the whole scan, in HBM only where it is given or asked for
"""

import dataclasses
from typing import NoReturn

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_tpu_lanes import LANES
from pallas_kernels.taylor_attention import mosaic_tpu_rotations as rotations
from pallas_kernels.taylor_attention.mosaic_tpu_rotations import SUBLANES, round_up

CHUNK = 128  # tokens; by libtpu's schedule 256 take a quarter longer on v5e, and at most 4 % less on v6e
MAX_GROUP = 16  # heads of a grid step
STAGE = 8  # heads that take each step of a chunk together
BLOCK_BYTES = 6 * 2**20
"""Bytes of a grid step's q, k, v and y, twice, for the copies that overlap the work."""
SCALES = 2.0**-30, 2.0**30
"""Between them the square of 1 / scale is far from the ends of float32; others are multiplied into q."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything static about one call. `block` need not divide `t`, nor `group` `h` (padded)."""

    b: int
    t: int
    h: int
    k: int
    v: int
    dtype: jnp.dtype
    scale: float
    eps: float
    normalize: bool
    group: int
    chunk: int
    """Chunk length."""
    block: int
    """Tokens of a grid step: whole chunks."""

    @property
    def a(self) -> float:
        """1 / scale: weights are 2 a^2 (1 + s + s^2/2) = (q.k + a)^2 + a^2."""
        return 1.0 / self.scale

    @property
    def n_groups(self) -> int:
        return pl.cdiv(self.h, self.group)

    @property
    def extra_heads(self) -> int:
        return self.n_groups * self.group - self.h

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.t, self.block)

    @property
    def ragged(self) -> bool:
        return self.t % self.block != 0

    @property
    def stages(self) -> list[range]:
        return [range(i, min(i + STAGE, self.group)) for i in range(0, self.group, STAGE)]

    @property
    def value_rows(self) -> int:
        """v, the normaliser, and zeros up to a tile of bfloat16."""
        return round_up(self.v + 1, 2 * SUBLANES)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return (self.group, self.value_rows, rotations.n_rows(self.k))

    @property
    def head_scratch(self) -> tuple[int, int, int]:
        return (self.group, rotations.scratch_rows(self.k), self.chunk)

    @property
    def den_shape(self) -> tuple[int, int, int, int]:
        return (self.b, self.n_groups, round_up(self.group, SUBLANES), self.n_blocks * self.block)


def head_group(h: int, k: int, v: int) -> int:
    """Heads per grid step: a divisor of h that fills lane tiles; else all h, up to 16; else padded."""
    tiled = [g for g in range(1, MAX_GROUP + 1) if g * k % LANES == 0 and g * v % LANES == 0]
    dividing = [g for g in tiled if h % g == 0]
    if dividing:
        return dividing[0]
    return h if h <= MAX_GROUP else tiled[0]


def make_geometry(q, k, v, *, h, scale, eps, normalize, chunk_size, block_size) -> Geometry:
    """Checks packed inputs against what the kernels cover.

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: a shape or dtype that the kernels do not cover.
    """
    if q.ndim != 3 or v.ndim != 3 or q.shape != k.shape or v.shape[:2] != q.shape[:2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape} must be (b,t,h*k), (b,t,h*k), (b,t,h*v)")
    b, t, width = q.shape
    if h < 1 or width % h or v.shape[2] % h:
        raise ValueError(f"h={h} must divide the last dimensions of q {q.shape} and v {v.shape}")
    if t < 1:
        raise ValueError(f"t={t} must be at least 1: without tokens the final state is the initial state")
    key_dim, value_dim, dtype = width // h, v.shape[2] // h, jnp.dtype(q.dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; they must be equal")
    if dtype.name not in ("bfloat16", "float32"):
        refuse(f"dtype={dtype.name} is neither bfloat16 nor float32")
    if key_dim not in (8, 16, 24, 32):
        refuse(f"key dim k={key_dim} is not one of 8, 16, 24, 32")
    if value_dim not in range(8, 129, 8):
        refuse(f"value dim v={value_dim} is not a multiple of 8 up to 128")
    if chunk_size < 16 or chunk_size % 16:
        raise ValueError(f"chunk_size={chunk_size} must be a positive multiple of 16")
    group = head_group(h, key_dim, value_dim)
    row_bytes = 4 * dtype.itemsize * group * (key_dim + value_dim)
    most = max(min(block_size, BLOCK_BYTES // row_bytes) // chunk_size, 1)
    chunks = pl.cdiv(t, chunk_size)
    return Geometry(
        b=b, t=t, h=h, k=key_dim, v=value_dim, dtype=dtype, scale=float(scale), eps=float(eps),
        normalize=normalize, group=group, chunk=chunk_size,
        block=chunk_size * pl.cdiv(chunks, pl.cdiv(chunks, most)),
    )  # fmt: skip


def within_range(q, scale: float) -> tuple[jax.Array, float, float]:
    """q, scale, and what the cotangent of q must be multiplied by: (q, scale, 1), or the scale moved into q."""
    if SCALES[0] <= abs(scale) <= SCALES[1]:
        return q, scale, 1.0
    return (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0, scale


def refuse(reason: str) -> NoReturn:
    raise NotImplementedError(f"mosaic_tpu: {reason}; use implementation='xla'")


class Blocks:
    """Block specs on the grid (b, head group, block); `backwards` visits the last block first."""

    def __init__(self, geometry: Geometry, *, backwards: bool = False):
        self.geometry = geometry
        last = geometry.n_blocks - 1
        self.block_id = (lambda n: last - n) if backwards else (lambda n: n)

    def tokens(self, head_dim: int) -> pl.BlockSpec:
        shape = (1, self.geometry.block, self.geometry.group * head_dim)
        return pl.BlockSpec(shape, lambda b, g, n: (b, self.block_id(n), g))

    def den(self) -> pl.BlockSpec:
        shape = (1, 1, self.geometry.den_shape[2], self.geometry.block)
        return pl.BlockSpec(shape, lambda b, g, n: (b, g, 0, self.block_id(n)))

    def state(self) -> pl.BlockSpec:
        return pl.BlockSpec((1, *self.geometry.state_shape), lambda b, g, n: (b, g, 0, 0))
