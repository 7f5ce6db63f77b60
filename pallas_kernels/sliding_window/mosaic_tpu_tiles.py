"""Inside the TPU kernels: tiles of scores with keys in rows and queries in lanes. Geometry: `mosaic_tpu_layout`.

Sums and maxima over keys are over rows. Two heads share a matmul as the diagonal blocks of a matrix.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.sliding_window.mosaic_tpu_layout import CHUNK, Geometry

LOG2_E = math.log2(math.e)
HIDDEN = -1e30
"""Exponent of a masked key."""


class Folding(NamedTuple):
    """Visible keys in the tiles of a chunk of queries. Tiles are in order of keys; the own chunk's tile may be folded
    with the farthest."""

    own: jax.Array
    """Mask of a (64, lanes) tile: keys of the own chunk up to the query."""
    hidden: list[jax.Array]
    """Bias of each tile: 0 for visible keys, else HIDDEN."""
    folds: bool

    @classmethod
    def of(cls, first_key, first_query, g: Geometry):
        """Folding of a chunk; first_key: first visible key; first_query: first query of the chunk."""
        shape = (CHUNK, g.beside * CHUNK)
        key, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        query = lane & (CHUNK - 1)
        own = key <= query

        def hidden(distance):
            behind = query - key + CHUNK * distance
            visible = (behind >= 0) & (behind < g.window) & (first_query + query - behind >= first_key)
            return jnp.where(visible, 0.0, HIDDEN)

        if not g.folds:
            return cls(own, [hidden(m) for m in range(g.farthest, -1, -1)], False)
        shared = hidden(jnp.where(own, 0, g.farthest))
        return cls(own, [shared, *(hidden(m) for m in range(g.farthest - 1, 0, -1))], True)

    def fold(self, x):
        """Splits (keys, lanes) into tiles."""
        parts = [x[i : i + CHUNK] for i in range(0, x.shape[0], CHUNK)]
        return [jnp.where(self.own, parts[-1], parts[0]), *parts[1:-1]] if self.folds else parts

    def unfold(self, tiles, dtype):
        """Joins tiles to (keys, lanes)."""
        if self.folds:
            shared, *rest = tiles
            tiles = [jnp.where(self.own, 0.0, shared), *rest, jnp.where(self.own, shared, 0.0)]
        return jnp.concatenate(tiles).astype(dtype)

    def exponents(self, scores, scale: float):
        """Tiles of base-2 exponents of the weights, from scores (keys, lanes)."""
        return [scale * LOG2_E * x + hidden for x, hidden in zip(self.fold(scores), self.hidden, strict=True)]


class Softmax(NamedTuple):
    """Softmax of tiles of base-2 exponents: exp2(exponent - maximum), their sums, and lse in base e."""

    weights: list[jax.Array]
    total: jax.Array
    lse: jax.Array

    @classmethod
    def of(cls, exponents):
        highest = functools.reduce(jnp.maximum, exponents).max(axis=0, keepdims=True)
        weights = [jnp.exp2(x - highest) for x in exponents]
        total = _over_keys(weights)
        return cls(weights, total, highest / LOG2_E + jnp.log(total))


def score_gradients(p, dp, scale: float):
    """Tiles of scale P (dP - sum_j P_ij dP_ij)."""
    delta = _over_keys([x * y for x, y in zip(p, dp, strict=True)])
    return [scale * x * (y - delta) for x, y in zip(p, dp, strict=True)]


def _over_keys(tiles):
    """Sums over keys, (1, lanes)."""
    return functools.reduce(operator.add, tiles).sum(axis=0, keepdims=True)


def chunk(i):
    return slice(CHUNK * i, CHUNK * (i + 1))


class Unit(NamedTuple):
    """A chunk of queries of the heads that share a tile."""

    g: Geometry
    lanes: pl.Slice
    number: int
    """Index of the head group in the step."""
    i: int
    """Index of the chunk in its block."""
    folding: Folding

    def queries(self, ref):
        """Rows of the chunk as a block diagonal matrix over heads, (heads 64, heads d)."""
        x = ref[chunk(self.i), self.lanes]
        return x if self.g.beside == 1 else jnp.concatenate([_lanes(x, None, self.g.d), _lanes(None, x, self.g.d)])

    def store(self, ref, x):
        """Stores the diagonal blocks of (heads 64, heads d) into the rows of the chunk."""
        x = x if self.g.beside == 1 else _lanes(x[:CHUNK], x[CHUNK:], self.g.d)
        ref[chunk(self.i), self.lanes] = x

    def met(self, ref, before):
        """Keys or values that the chunk uses, (chunks 64, heads d)."""
        first, end = CHUNK * (self.i - self.g.farthest), CHUNK * (self.i + 1)
        if first >= 0:
            return ref[first:end, self.lanes]
        return jnp.concatenate([before[CHUNK * self.i :, self.lanes], ref[:end, self.lanes]])


def units_of(stage, foldings, g: Geometry) -> list[Unit]:
    """Units of head groups, for all chunks of the block."""
    width = g.beside * g.d
    return [Unit(g, pl.ds(n * width, width), n, i, f) for n in stage for i, f in enumerate(foldings)]


def each(function, *lists):
    """Applies the function elementwise to lists."""
    return [function(*x) for x in zip(*lists, strict=True)]


def per_tile(x, g: Geometry):
    """Splits (heads, block) into (heads / beside, lanes of a tile) for each chunk."""
    x = x.reshape(-1, g.beside, g.block)
    return [jnp.concatenate([x[:, n, chunk(i)] for n in range(g.beside)], axis=1) for i in range(g.chunks)]


def per_head(chunks, g: Geometry):
    """The inverse of `per_tile`."""
    heads = [jnp.concatenate([x[:, chunk(n)] for x in chunks], axis=1) for n in range(g.beside)]
    return jnp.stack(heads, axis=1).reshape(g.heads, g.block)


def dot(x, y):
    return _matmul(x, y, ((1,), (0,)))


def dot_transposed(x, y):
    """x y^T."""
    return _matmul(x, y, ((1,), (1,)))


def _matmul(x, y, contracted):
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(x, y, (contracted, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def _lanes(left, right, width: int):
    """Lanes below `width` from left, others from right; None: zeros. 16-bit rows are packed in pairs."""
    one = right if left is None else left
    packed = (lambda x: x) if one.dtype == jnp.float32 else (lambda x: pltpu.bitcast(x, jnp.int32))
    left, right = (packed(jnp.zeros_like(one) if x is None else x) for x in (left, right))
    chosen = jnp.where(lax.broadcasted_iota(jnp.int32, left.shape, 1) < width, left, right)
    return chosen if one.dtype == jnp.float32 else pltpu.bitcast(chosen, one.dtype)
