"""Layouts of the Hopper kernels, and their conversions, in plain XLA.

Legend: b batch, t time, h query heads, k key dim, v value dim, c chunk (64 rows), f features.

Features: the columns of `mosaic_gpu_features`. The query side carries the weights: x = scale q in place of q,
and 1/2 on squares, so that phi_q(q).phi(k) = 1 + s + s^2/2 with s = scale q.k. A scale that is no power of two, by
which bf16 would be rounded, multiplies q beforehand (`split_scale`).

Key dims are padded with zeros to `Widths.keys`, which changes no product. Value dims are padded to a multiple of
`Widths.values` and cut into tiles; a tile is a head of its own that shares q and k with its siblings, so that kernels
know one v only.

Public state: s (b, h, f, v), z (b, h, f) float32 with the f = 1 + k + k (k + 1) / 2 features [1, x_a, x_a x_b
(a <= b)].
Kernel state, per tile head, float32:
  s `Widths.state`: S[c, v] or its transpose, in the columns c of `mosaic_gpu_features`;
  z (64, keys): the first rows are the symmetric matrix Z2 = sum_j k_j k_j^T, row `keys` is z1 = sum_j k_j, the rest 0;
    neither carries weights, also in the cotangent, which sums over queries. Of two parts, each has 2 `keys` rows, and
    the state is the sum of both.
The count (slot 0 of the public z) never enters the state scan: it is known in closed form.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.taylor_attention.mosaic_gpu_features import channels, constant_column
from pallas_kernels.taylor_attention.mosaic_gpu_split import CHUNK, MAX_KEY_DIM, Widths, widths
from pallas_kernels.taylor_attention.problem import Problem


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    return why_not(p.k, p.dtypes)


def automatic(p: Problem) -> bool:
    """Whether these kernels may be chosen automatically; float32 and wider keys are served by name only."""
    return p.dtype_name == "bfloat16" and p.k <= 16


def why_not(key_dim: int, dtypes: tuple[str, ...]) -> str | None:
    """`objection`, from the key dim and the dtypes of q, k, v."""
    reason = hopper_objection(dtypes, tuple(MAX_KEY_DIM))
    if reason is not None:
        return reason
    most = MAX_KEY_DIM[dtypes[0]]
    return f"feature_dim={key_dim} is more than {most}, the most for {dtypes[0]}" if key_dim > most else None


def split_scale(scale: float) -> tuple[float, float]:
    """(factor of s inside the kernels, factor of q before them): powers of two, as 16^-1/2 is, go inside."""
    return (scale, 1.0) if math.frexp(abs(scale))[0] == 0.5 else (1.0, scale)


def public_columns(key_dim: int, sizes: Widths) -> np.ndarray:
    """(f,) column of every public feature."""
    first, second = channels(sizes.groups, sizes.columns)
    columns = {tuple(sorted(x for x in pair if x >= 0)): i for i, pair in enumerate(zip(first, second, strict=True))}
    rows, cols = np.triu_indices(key_dim)
    pairs = [columns[pair] for pair in zip(rows, cols, strict=True)]
    return np.array([constant_column(sizes.groups), *(columns[(a,)] for a in range(key_dim)), *pairs])


def pad_minor(x, multiple: int):
    """Zero columns up to a multiple."""
    pad = -x.shape[-1] % multiple
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)]) if pad else x


def split_values(x, width: int):
    """(b, t, heads, v) -> (b, t, heads * tiles, width); free where v is a multiple of it."""
    x = pad_minor(x, width)
    return x.reshape(*x.shape[:2], -1, width)


def join_values(x, heads: int, value_dim: int):
    """Inverse of `split_values`."""
    return x.reshape(*x.shape[:2], heads, -1)[..., :value_dim]


def pack_state(
    s: jax.Array, z: jax.Array, key_dim: int, sizes: Widths, *, z_once: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Public s (b, h, f, v), z (b, h, f) -> kernel s (b, h * tiles, *Widths.state), z (b, h * tiles, 64, keys).

    z is repeated over the tiles of a head, or given to the first only (z_once: a cotangent must count once).
    """
    b, h, features = z.shape
    s = pad_minor(s, sizes.values)
    tiles = s.shape[-1] // sizes.values
    # Gathers by static indices from arrays with a zero appended: index `features` reads the zero.
    source = np.full(sizes.columns, features)
    source[public_columns(key_dim, sizes)] = np.arange(features)
    s = jnp.pad(s, ((0, 0), (0, 0), (0, 1), (0, 0)))[:, :, source]
    s = s.reshape(b, h, sizes.columns, tiles, sizes.values).transpose(0, 1, *_state_axes(sizes))
    rows, cols = np.triu_indices(key_dim)
    source = np.full((CHUNK, sizes.keys), features)
    source[rows, cols] = source[cols, rows] = np.arange(1 + key_dim, features)
    source[sizes.keys, :key_dim] = np.arange(1, 1 + key_dim)
    z = jnp.pad(z, ((0, 0), (0, 0), (0, 1)))[:, :, source]
    z = jnp.pad(z[:, :, None], ((0, 0), (0, 0), (0, tiles - 1), (0, 0), (0, 0)), "constant" if z_once else "edge")
    return s.reshape(b, h * tiles, *sizes.state), z.reshape(b, h * tiles, CHUNK, sizes.keys)


def _state_axes(sizes: Widths) -> tuple[int, int, int]:
    """Where the axes of (b, h, tiles, *Widths.state) from 2 on are in (b, h, columns, tiles, values)."""
    return (3, 4, 2) if sizes.values_first else (3, 2, 4)


def one_border(state, key_dim: int, dtype: DTypeLike):
    """The kernel state where the only segment starts, (b, blocks, 1, ...); state: public (s, z) or None for zeros."""
    return None if state is None else tuple(x[:, :, None] for x in pack_state(*state, key_dim, widths(key_dim, dtype)))


def unpack_state(
    s, z, count, key_dim: int, value_dim: int, sizes: Widths, *, z_sum: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Inverse of `pack_state`; count (b, h) is slot 0 of the public z. z_sum adds the tiles' z: a
    cotangent."""
    b, h = count.shape
    tiles = s.shape[1] // h
    s = s.reshape(b, h, tiles, *sizes.state).transpose(0, 1, *(2 + np.argsort(_state_axes(sizes))))
    s = s.reshape(b, h, sizes.columns, tiles * sizes.values)[:, :, public_columns(key_dim, sizes), :value_dim]
    z = z.reshape(b, h, tiles, CHUNK, sizes.keys)
    z = z.sum(2) if z_sum else z[:, :, 0]
    z = z.reshape(b, h, -1, 2 * sizes.keys, sizes.keys).sum(2)
    rows, cols = np.triu_indices(key_dim)
    return s, jnp.concatenate([count[..., None], z[:, :, sizes.keys, :key_dim], z[:, :, rows, cols]], -1)


@dataclasses.dataclass(frozen=True)
class Heads:
    """Which head of each operand a block reads, and how wide; a block is one (query head, value tile)."""

    query: int
    key: int
    tiles: int
    widths: Widths

    @property
    def blocks(self) -> int:
        return self.query * self.tiles

    def of_query(self, block):
        return block // self.tiles

    def of_key(self, block):
        return block // (self.tiles * (self.query // self.key))

    def of_value(self, block):
        return self.of_key(block) * self.tiles + block % self.tiles

    def of_block(self, block):
        return block


def pad_time(x, t: int):
    """Zero rows up to a whole chunk, where TMA cannot cut the tail: t < 64, or t no multiple of its tiles of
    8 rows."""
    rows = -t % CHUNK if t < CHUNK or t % 8 else 0
    return jnp.pad(x, ((0, 0), (0, rows), (0, 0), (0, 0))) if rows else x


def decay_table(log_decay, t: int):
    """log decay (h,) -> (h, 4, 64) float32, the powers that the kernels need for t tokens; None for None.

    The last chunk has tail = 1 .. 64 tokens. Row 0: decay^(i+1); 1: decay^(63-i); 2: decay^(tail-1-i), 1 for i >= tail;
    3: log2 decay, sum_{i<64} decay^i, decay^64, decay^tail, 0 ...
    """
    if log_decay is None:
        return None
    tail = (t - 1) % CHUNK + 1
    row = np.arange(CHUNK)
    exponents = np.stack([row + 1, CHUNK - 1 - row, np.maximum(tail - 1 - row, 0)]).astype(np.float32)
    powers = jnp.exp(log_decay[:, None, None] * exponents[None])
    scalars = [log_decay * np.float32(1 / np.log(2)), powers[:, 1].sum(-1), powers[:, 0, -1], powers[:, 0, tail - 1]]
    scalars = jnp.pad(jnp.stack(scalars, -1), ((0, 0), (0, CHUNK - len(scalars))))
    return jnp.concatenate([powers, scalars[:, None]], 1)


def decayed_counts(log_decay, count0, tokens: int):
    """Slot 0 of z after `tokens` tokens: decay^n count0 + sum_{j<n} decay^j. log_decay (h,) or None; count0
    (b, h)."""
    if log_decay is None:
        return count0 + np.float32(tokens)
    flat = log_decay == 0
    rate = jnp.where(flat, -1.0, log_decay)  # keeps 0/0 out of the unused branch
    grown = jnp.where(flat, np.float32(tokens), jnp.expm1(tokens * rate) / jnp.expm1(rate))
    return count0 * jnp.exp(tokens * log_decay)[None] + grown[None]
