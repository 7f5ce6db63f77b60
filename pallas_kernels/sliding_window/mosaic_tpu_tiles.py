"""Inside the TPU kernels: tiles of scores with keys in rows and queries in lanes. Geometry: `mosaic_tpu_layout`.

So sums and maxima over keys are sums of rows, which the vector units do; over lanes they would need the unit that
moves lanes. Two heads come into one matmul as the diagonal blocks of a matrix.
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
"""Exponent of a key that is not visible."""


class Folding(NamedTuple):
    """Visible keys in the tiles of a chunk of queries. Tiles come in the order of their keys, but for the own
    chunk's, which is folded with the farthest's."""

    own: jax.Array
    """Mask of a (64, lanes) tile: where it may see the own chunk."""
    hidden: list[jax.Array]
    """Bias of each tile: 0 where the key is visible, else HIDDEN."""
    folds: bool

    @classmethod
    def of(cls, first_key, first_query, g: Geometry):
        """first_key: that exists; first_query: of the chunk; both counted from the first key of the call."""
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
        """(keys, lanes) -> tiles."""
        parts = [x[i : i + CHUNK] for i in range(0, x.shape[0], CHUNK)]
        return [jnp.where(self.own, parts[-1], parts[0]), *parts[1:-1]] if self.folds else parts

    def unfold(self, tiles, dtype):
        """Tiles -> (keys, lanes)."""
        if self.folds:
            shared, *rest = tiles
            tiles = [jnp.where(self.own, 0.0, shared), *rest, jnp.where(self.own, shared, 0.0)]
        return jnp.concatenate(tiles).astype(dtype)

    def exponents(self, scores, scale: float):
        """Tiles of the logarithms to base 2 of exp(scale scores), from (keys, lanes)."""
        return [scale * LOG2_E * x + hidden for x, hidden in zip(self.fold(scores), self.hidden, strict=True)]


class Softmax(NamedTuple):
    """Softmax of tiles of exponents to base 2: exp2(exponent - the query's highest), their sums, and lse to base e."""

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
    """Sums, (1, lanes)."""
    return functools.reduce(operator.add, tiles).sum(axis=0, keepdims=True)


def chunk(i):
    return slice(CHUNK * i, CHUNK * (i + 1))


class Unit(NamedTuple):
    """A chunk of queries of the heads that are side by side, and what they see."""

    g: Geometry
    lanes: pl.Slice
    number: int
    """Number of these heads among those of the step."""
    i: int
    """Index of the chunk in its block."""
    folding: Folding

    def queries(self, ref):
        """Rows of the chunk, one head after another with zeros beside it: (heads 64, heads d)."""
        x = ref[chunk(self.i), self.lanes]
        return x if self.g.beside == 1 else jnp.concatenate([_lanes(x, None, self.g.d), _lanes(None, x, self.g.d)])

    def store(self, ref, x):
        """The blocks on the diagonal of (heads 64, heads d), side by side, into rows of the chunk."""
        x = x if self.g.beside == 1 else _lanes(x[:CHUNK], x[CHUNK:], self.g.d)
        ref[chunk(self.i), self.lanes] = x

    def met(self, ref, before):
        """The keys or values that the chunk meets, (chunks 64, heads d)."""
        first, end = CHUNK * (self.i - self.g.farthest), CHUNK * (self.i + 1)
        if first >= 0:
            return ref[first:end, self.lanes]
        return jnp.concatenate([before[CHUNK * self.i :, self.lanes], ref[:end, self.lanes]])


def units_of(stage, foldings, g: Geometry) -> list[Unit]:
    """Units of numbers of heads side by side, all chunks of the block."""
    width = g.beside * g.d
    return [Unit(g, pl.ds(n * width, width), n, i, f) for n in stage for i, f in enumerate(foldings)]


def each(function, *lists):
    """[function(x, y, ...)] for x, y, ... of the lists."""
    return [function(*x) for x in zip(*lists, strict=True)]


def per_tile(x, g: Geometry):
    """(heads, block) -> for each chunk (heads / beside, lanes of a tile)."""
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
    """Lanes below `width` of left, the others of right; None is zeros. Two rows of 16 bits are one of 32."""
    one = right if left is None else left
    packed = (lambda x: x) if one.dtype == jnp.float32 else (lambda x: pltpu.bitcast(x, jnp.int32))
    left, right = (packed(jnp.zeros_like(one) if x is None else x) for x in (left, right))
    chosen = jnp.where(lax.broadcasted_iota(jnp.int32, left.shape, 1) < width, left, right)
    return chosen if one.dtype == jnp.float32 else pltpu.bitcast(chosen, one.dtype)
