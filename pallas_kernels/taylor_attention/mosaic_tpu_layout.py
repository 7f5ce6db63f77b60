"""Geometry of the TPU kernels of Taylor attention: groups of heads, blocks and chunks of tokens.

Heads are packed on the last axis, q, k: (b, t, h*k), v, y: (b, t, h*v), as in the results of projections: on a TPU, an
array whose last dimension is 16 takes eight times its size. A grid step (b, head group, block) reads a group of heads,
8 x 16 = 128 lanes for k = 16, and processes the chunks of its block in order. In HBM

  den        (b, groups, heads, time) float32: time on the lanes
  state      [S | z | 0]^T: (b, heads, value rows, feature rows) float32; in VMEM during the scan, in HBM only as an
             input or output

Features of a head are products of its channels with their rotations, without matmuls. Tokens are on the lanes and a
head's k channels on the sublanes, so x_(i+j mod k) for all i is an unaligned load from a scratch that repeats the first
channels. With m = k / 2, the rows of phi^T are

    x_i x_(i+j mod k), j = 0 .. m-1 (k rows each) | x (k) | x_i x_(i+m), i < m | 1 | 0 ...

in which no pair occurs twice: 153 features and 7 zeros for k = 16. Queries have the weights. With a = 1 / scale,

    2 a^2 (1 + s + s^2/2) = (q.k + a)^2 + a^2 = W phi(q) . phi(k)      W: squares 1, pairs 2, x 2a, constant 2a^2

The public order (`features.py`) is a permutation of the nonzero rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.taylor_attention.features import n_features, pair_indices
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.tpu.lanes import LANES, Specs, call_by_name

SUBLANES = 8


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def n_rows(k: int) -> int:
    """Rows of phi^T: whole tiles of bfloat16."""
    return round_up(n_features(k), 2 * SUBLANES)


def scratch_rows(k: int) -> int:
    """Rows of the scratch of one head: its channels, and the first ones again."""
    return k + round_up(k // 2, SUBLANES)


def public_rows(k: int) -> np.ndarray:
    """The row of each feature of `features.py`, (features,)."""
    first, second = pair_indices(k)
    shift, half, linear = second - first, k // 2, k * k // 2
    pairs = np.where(shift < half, shift * k + first, (k - shift) * k + second)
    pairs = np.where(shift == half, linear + k + first, pairs)
    return np.concatenate([[linear + k + half], linear + np.arange(k), pairs])


def spread(xt, ref, k):
    """x^T (heads*k, c) -> ref (heads, scratch_rows, c) float32."""
    x = xt.astype(jnp.float32).reshape(ref.shape[0], k, xt.shape[1])
    ref[:, :k] = x
    ref[:, k:] = x[:, : ref.shape[1] - k]


def features(ref, head, k, dtype, a=None):
    """phi^T of one head from its scratch, times W if `a` is given: (n_rows, c)."""
    x, half = ref[head, :k], k // 2
    twice, linear, constant = (x, x, 1.0) if a is None else (x + x, (2 * a) * x, 2 * a * a)
    rows = [x * x, *(twice * ref[head, j : j + k] for j in range(1, half)), linear]
    whole = round_up(half, SUBLANES)
    last = twice[:whole] * ref[head, half : half + whole]
    if whole == half:
        rows += [last, jnp.where(_row(SUBLANES, x) == 0, constant, 0.0)]
    else:
        rows.append(jnp.where(_row(whole, x) < half, last, jnp.where(_row(whole, x) == half, constant, 0.0)))
    rows.append(jnp.zeros((n_rows(k) - sum(len(part) for part in rows), x.shape[1]), jnp.float32))
    return _concatenate(rows).astype(dtype)


def pull_back(u, ref, head, k, a=None):
    """J^T u for J = d phi / dx, or with `a` for W phi / 2: u (n_rows, c) float32 -> (k, c)."""
    x, half = ref[head, :k], k // 2
    linear = half * k
    dx = (u[:k] * (x + x) + u[linear : linear + k]) if a is None else (u[:k] * x + a * u[linear : linear + k])
    pairs = [u[j * k : (j + 1) * k] for j in range(1, half)]
    last = u[linear + k : linear + k + half]
    if half % SUBLANES == 0:
        dx += jnp.concatenate([last * x[half:], last * x[:half]])
    else:
        last = u[linear + k : linear + k + round_up(half, SUBLANES)]
        last = jnp.where(_row(len(last), x) < half, last, 0.0)
        pairs.append(_concatenate([last, jnp.zeros((k - len(last), x.shape[1]), jnp.float32)]))
    for j, pair in enumerate(pairs, start=1):
        dx += pair * ref[head, j : j + k] + pltpu.roll(pair * x, j, 0)
    return dx


def _row(rows, like):
    return lax.broadcasted_iota(jnp.int32, (rows, like.shape[1]), 0)


def _concatenate(parts):
    return jnp.concatenate([part for part in parts if len(part)])


CHUNK = 128  # tokens
MAX_GROUP = 16  # heads of a grid step
STAGE = 8  # heads that take each step of a chunk together
BLOCK_BYTES = 6 * 2**20
"""Maximum bytes of a grid step's q, k, v and y, double-buffered."""
SCALES = 2.0**-30, 2.0**30
"""Range of scales whose inverse square is well within float32; other scales are multiplied into q."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Static sizes of a call. `block` need not divide `t`, nor `group` divide `h`."""

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
        """v, the normalizer, and padding to a tile of bfloat16."""
        return round_up(self.v + 1, 2 * SUBLANES)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return (self.group, self.value_rows, n_rows(self.k))

    @property
    def head_scratch(self) -> tuple[int, int, int]:
        return (self.group, scratch_rows(self.k), self.chunk)

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


def make_geometry(q, v, *, h, scale, eps, normalize, chunk_size, block_size) -> Geometry:
    """Geometry of packed inputs."""
    b, t, width = q.shape
    key_dim, value_dim, dtype = width // h, v.shape[2] // h, jnp.dtype(q.dtype)
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
    """q, scale and factor of dq: (q, scale, 1), or the scale moved into q."""
    if SCALES[0] <= abs(scale) <= SCALES[1]:
        return q, scale, 1.0
    return (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0, scale


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


def call(kernel, geometry: Geometry, inputs: Specs, outputs: Specs, *, interpret, name: str) -> dict[str, jax.Array]:
    """pallas_call over (b, head group, block).

    kernel: function of a mapping from names to refs: inputs, outputs, `carry`, and the scratch `q_rows`, `k_rows` (one
    entry per parity of a chunk) and, with decay, `between` (heads, c, c).
    """
    g = geometry
    if not interpret and g.chunk % LANES:
        raise ValueError(f"chunk_size={g.chunk} must be a multiple of {LANES} on a TPU")
    scratch = {"carry": g.state_shape, "q_rows": (2, *g.head_scratch), "k_rows": (2, *g.head_scratch)}
    if "log_decay" in inputs:
        scratch["between"] = (g.group, g.chunk, g.chunk)
    grid = (g.b, g.n_groups, g.n_blocks)
    return call_by_name(kernel, grid, inputs, outputs, scratch, interpret=interpret, name=name)


def decay_input(decay, geometry: Geometry) -> dict[str, tuple[Any, pl.BlockSpec]]:
    """Log decay (heads,) in SMEM; empty without decay."""
    if decay is None:
        return {}
    # log 0 = -inf would make decay^0 = exp(0 * -inf) = NaN.
    log_decay = jnp.log(jnp.maximum(decay.astype(jnp.float32), jnp.finfo(jnp.float32).tiny))
    return {"log_decay": (jnp.pad(log_decay, (0, geometry.extra_heads)), pl.BlockSpec(memory_space=pltpu.SMEM))}


def tokens_struct(geometry: Geometry, head_dim: int) -> jax.ShapeDtypeStruct:
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.t, (g.h + g.extra_heads) * head_dim), g.dtype)


def pad_tokens(x, geometry: Geometry):
    """Pads (b, t, h*.) with heads of zeros to `tokens_struct`."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, geometry.extra_heads * (x.shape[-1] // geometry.h))))


def unpad_tokens(x, geometry: Geometry):
    return x[:, :, : x.shape[-1] // (geometry.h + geometry.extra_heads) * geometry.h]


def den_struct(geometry: Geometry) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(geometry.den_shape, jnp.float32)


def state_struct(geometry: Geometry) -> jax.ShapeDtypeStruct:
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.h + g.extra_heads, *g.state_shape[1:]), jnp.float32)


def pack_state(state: TaylorState, geometry: Geometry):
    """Converts `TaylorState` to `state_struct`."""
    g, features = geometry, n_features(geometry.k)
    both = jnp.concatenate([state.s.mT, state.z[..., None, :]], axis=2).astype(jnp.float32)
    both = jnp.pad(both, ((0, 0), (0, g.extra_heads), (0, g.value_rows - g.v - 1), (0, 1)))
    source = np.full(g.state_shape[2], features)  # the padding
    source[public_rows(g.k)] = np.arange(features)
    return jnp.take(both, source, axis=3)


def unpack_state(packed, geometry: Geometry) -> TaylorState:
    """The inverse of `pack_state`."""
    packed = jnp.take(packed[:, : geometry.h, : geometry.v + 1], public_rows(geometry.k), axis=3)
    return TaylorState(packed[:, :, : geometry.v].mT, packed[:, :, geometry.v])


def pack_den(den, geometry: Geometry):
    """Converts (b, h, t) to `den_shape`, padded with ones."""
    g = geometry
    _, _, rows, time = g.den_shape
    den = jnp.pad(den, ((0, 0), (0, g.extra_heads), (0, time - g.t)), constant_values=1.0)
    den = den.reshape(g.b, g.n_groups, g.group, time)
    return jnp.pad(den, ((0, 0), (0, 0), (0, rows - g.group), (0, 0)), constant_values=1.0)


def unpack_den(packed, geometry: Geometry):
    """The inverse of `pack_den`."""
    g = geometry
    heads = packed[:, :, : g.group].reshape(g.b, g.h + g.extra_heads, -1)
    return heads[:, : g.h, : g.t]
