"""Pieces of the bodies of the TPU kernels of Taylor attention: one chunk of c tokens, its heads, its decay.

All but the tokens as they are read is transposed, tokens on the lanes, so that a matmul streams few rows: k channels,
v + 1 values or 160 features of a head, by c lanes. Scores have keys on the sublanes and queries on the lanes.
"""

import math

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_tpu_lanes import LANES, matmul, matmul_nt, only_lanes
from pallas_kernels.taylor_attention import mosaic_tpu_rotations as rotations
from pallas_kernels.taylor_attention.mosaic_tpu_layout import Geometry
from pallas_kernels.taylor_attention.mosaic_tpu_rotations import SUBLANES, round_up


def transposed(x, head_dim: int):
    """x^T. Heads that begin within a tile of bfloat16 become float32, whose tiles they fill."""
    return x.T if head_dim % (2 * SUBLANES) == 0 else x.astype(jnp.float32).T


def head_rows(xt, head: int, head_dim: int):
    """(heads*head_dim, c) -> (head_dim, c)."""
    return xt[head * head_dim : (head + 1) * head_dim]


def tile(head: int, head_dim: int, width: int) -> slice:
    """The whole tiles of lanes that hold a head."""
    return slice(head * head_dim // LANES * LANES, min(round_up((head + 1) * head_dim, LANES), width))


def own_lanes(x, head: int, head_dim: int):
    """The head's `tile` of x (c, heads*head_dim), the lanes of other heads zeroed."""
    part = tile(head, head_dim, x.shape[1])
    first = head * head_dim - part.start
    return only_lanes(x[:, part], first, head_dim)


class Chunk:
    """Chunk `n` of a block: the tokens that it has, what it reads, and where its rotated channels are kept."""

    def __init__(self, refs, geometry: Geometry, block_id, n: int):
        g = self.geometry = geometry
        self.refs, self.lanes = refs, slice(n * g.chunk, (n + 1) * g.chunk)
        self.length = g.chunk
        if g.ragged:
            self.length = jnp.clip(g.t - block_id * g.block - n * g.chunk, 0, g.chunk)
        self.q_rows, self.k_rows = (refs[name].at[n % 2] for name in ("q_rows", "k_rows"))

    def load(self, name: str):
        """(c, heads*.). Beyond its array a block may hold NaN: zeros there."""
        x = self.refs[name][0, self.lanes, :]
        if not self.geometry.ragged:
            return x
        row = lax.broadcasted_iota(jnp.int32, (len(x), 1), 0)
        return jnp.where(row < self.length, x, jnp.zeros_like(x))

    def spread(self, qt, k):
        rotations.spread(qt, self.q_rows, self.geometry.k)
        rotations.spread(k.T, self.k_rows, self.geometry.k)

    def key_features(self, head: int):
        return rotations.features(self.k_rows, head, self.geometry.k, self.geometry.dtype)

    def query_features(self, head: int):
        return rotations.features(self.q_rows, head, self.geometry.k, self.geometry.dtype, self.geometry.a)

    def shifted_scores(self, k, qt, head: int):
        """q.k + a, (c, c); k as loaded, qt^T of all heads."""
        k_dim = self.geometry.k
        return matmul(own_lanes(k, head, k_dim), qt[tile(head, k_dim, len(qt))]) + self.geometry.a

    def value_operand(self, vt, head: int):
        """[v | 1 | 0]^T: (value rows, c). A token that does not exist has no 1, because z would count it."""
        g = self.geometry
        shape = (g.value_rows - g.v, g.chunk)
        row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        ones = jnp.where((row == 0) & (lane < self.length) if g.ragged else row == 0, 1.0, 0.0)
        own = head_rows(vt, head, g.v)
        return jnp.concatenate([own, ones.astype(own.dtype)]).astype(g.dtype)

    def add_to_state(self, decay: "Decay", head: int, values):
        """carry = decay^length carry + [v | 1]^T phi(K), decayed from each token to the end."""
        carry = self.refs["carry"]
        added = matmul_nt(decay.to_end(head, values, self.length), self.key_features(head))
        carry[head] = decay.whole_chunk(head, carry[head], self.length) + added


def in_turn(chunks, start, finish):
    """`start(chunk)` of one chunk, `finish(chunk, started)` of the one before: the MXU works on the first while the
    second waits for the state."""
    pending = None
    for chunk in chunks:
        started = chunk, start(chunk)
        if pending is not None:
            finish(*pending)
        pending = started
    finish(*pending)


class Decay:
    """Multiplies by powers of the decay of each head; none is of a negative exponent, so that none overflows.

    Without decay every method but `between` returns its argument.
    """

    def __init__(self, refs, geometry: Geometry):
        self.geometry, self.powers, self.active = geometry, refs.get("between"), "log_decay" in refs
        if self.active:
            first = pl.program_id(1) * geometry.group
            self.logs = [refs["log_decay"][first + head] for head in range(geometry.group)]
        key, query = (lax.broadcasted_iota(jnp.int32, (geometry.chunk,) * 2, axis) for axis in (0, 1))
        self.distance = query - key

    def prepare(self):
        """Fills the scratch of `between`, once for a row of a head group."""
        if self.active:
            for head in range(self.geometry.group):
                power = self._power(head, jnp.maximum(self.distance, 0))
                self.powers[head] = jnp.where(self.distance >= 0, power, 0.0)

    def between(self, head: int, p):
        """p_ji decay^(i-j) for j <= i, else 0: (c, c)."""
        return p * self.powers[head] if self.active else jnp.where(self.distance >= 0, p, 0.0)

    def since_start(self, head: int, x):
        """x_i decay^(i+1): from the state before the chunk to token i; tokens on the lanes."""
        return self._lanes(head, x, lambda lane: lane + 1)

    def to_end(self, head: int, x, length):
        """x_j decay^(length-1-j): from token j to the state after the chunk."""
        return self._lanes(head, x, lambda lane: jnp.maximum(length - 1 - lane, 0))

    def whole_chunk(self, head: int, state, length):
        return state * self._power(head, jnp.full((1, 1), length, jnp.int32)) if self.active else state

    def _lanes(self, head, x, exponent):
        if not self.active:
            return x
        lane = lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1)
        return (x.astype(jnp.float32) * self._power(head, exponent(lane))).astype(x.dtype)

    def _power(self, head, n):
        return jnp.exp(n.astype(jnp.float32) * self.logs[head])


def write_heads(ref, lanes: slice, heads: list, geometry: Geometry):
    """Values (head_dim, c) of each head of the group -> ref (1, block, heads*head_dim), a tile of lanes at a time."""
    head_dim = len(heads[0])
    for first in range(0, len(heads), per_tile := LANES // math.gcd(LANES, head_dim)):
        part = heads[first : first + per_tile]
        out = jnp.concatenate(part) if len(part) > 1 else part[0]
        out = out.astype(geometry.dtype).T
        ref[0, lanes, first * head_dim : first * head_dim + out.shape[1]] = out
