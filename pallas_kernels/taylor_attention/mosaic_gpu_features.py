"""Features of (64, 16) and (64, 32) tiles in registers, and their derivative, by exchanges within quads of lanes.

In the layout of wgmma the four lanes l = 0 .. 3 of a quad hold a row x: each lane has the pair 2l, 2l + 1 of every 8
channels (a group), and of every 8 columns of features (a tile). With a, b .. the pairs of the 2, 3 or 4 groups, and c_e
the pair c of lane l ^ e, the tiles are

  a;  a a;  a b and a b~ for every two groups;  (a0 a1, b0 b1) for groups 1 and 2, and 3 and 4;  1 in the first column,
  and 0 where tiles are odd so far;
  for e = 1, 2, 3:  a a_e';  a b_e and a b_e~ for every two groups

with ~ for a swapped pair, and ' for a pair swapped only in the upper of the lanes l and l ^ e. Every product of two
channels is made once. Lanes are arrays (interpret mode), channel numbers (`channels`) or registers
(`hopper.lanes.RegisterLanes`).
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

TILE = 8


class ArrayLanes:
    """Pairs as arrays (rows, 2, 2, 2): two bits of the lane, and the element; numpy: NumPy or jax.numpy."""

    def __init__(self, numpy):
        self.numpy = numpy

    def tiles(self, x):
        """Splits (rows, 8 n) into n tiles of pairs."""
        return [x[:, i : i + TILE].reshape(-1, 2, 2, 2) for i in range(0, x.shape[1], TILE)]

    def join(self, tiles):
        """The inverse of `tiles`."""
        return self.numpy.concatenate([x.reshape(-1, TILE) for x in tiles], 1)

    def wide(self, x):
        """Converts to float32."""
        return x.astype(np.float32)

    def add(self, x, y):
        return x + y

    def multiply(self, x, y):
        return x * y

    def multiply_add(self, x, y, z):
        return x * y + z

    def half(self, x):
        return x * x.dtype.type(0.5)

    def zero(self, like):
        return self.numpy.zeros_like(like)

    def one(self, like):
        """Tile with 1 in the first column, else 0."""
        first = self.numpy.arange(TILE) == 0
        return self.numpy.zeros_like(like) + first.astype(like.dtype).reshape(1, 2, 2, 2)

    def swap(self, x):
        return x[..., ::-1]

    def exchange(self, x, e):
        """Values of lane l ^ e."""
        x = x[:, ::-1] if e & 2 else x
        return x[:, :, ::-1] if e & 1 else x

    def choose(self, x, e):
        """Swaps the pair if l > l ^ e."""
        axis = 1 if e & 2 else 2
        lower, upper = self.numpy.split(x, 2, axis)
        return self.numpy.concatenate([lower, self.swap(upper)], axis)

    def pack(self, x, y, i):
        """The pair (x_i, y_i)."""
        return self.numpy.stack([x[..., i], y[..., i]], -1)

    def spread(self, x, i):
        """The pair (x_i, x_i)."""
        return self.pack(x, x, i)


class Tile(NamedTuple):
    """Factors of a tile: the pair of group `first`, and the pair of group `second` in lane l ^ exchange."""

    kind: str
    """channel (no second factor), product, crossed (second factor swapped), halves (swapped in the upper lane), inner
    (the two channels of each group; second is None for a single group), one, zero."""
    first: int = 0
    second: int | None = None
    exchange: int = 0


@functools.cache
def scheme(groups: int) -> tuple[Tile, ...]:
    """The tiles of the features of `groups` groups of 8 channels, in order."""
    each, two = range(groups), tuple(itertools.combinations(range(groups), 2))
    tiles = [Tile("channel", g) for g in each] + [Tile("product", g, g) for g in each]
    tiles += [Tile(kind, *pair) for pair in two for kind in ("product", "crossed")]
    tiles += [Tile("inner", g, g + 1 if g + 1 < groups else None) for g in each[::2]] + [Tile("one")]
    tiles += [Tile("zero")] * (len(tiles) % 2)
    for e in (1, 2, 3):
        tiles += [Tile("halves", g, g, e) for g in each]
        tiles += [Tile(kind, *pair, e) for pair in two for kind in ("product", "crossed")]
    return tuple(tiles)


def tiles_between(groups: int, start: int, stop: int) -> tuple[Tile, ...]:
    """Tiles of columns start .. stop, multiples of 8; tiles after the features are zero."""
    tiles = scheme(groups)[start // TILE : stop // TILE]
    return tiles + (Tile("zero"),) * ((stop - start) // TILE - len(tiles))


class _Pairs:
    """Pairs of a row's groups, and the pairs of other lanes, each exchanged once."""

    def __init__(self, lanes, x):
        self.lanes, self.own, self.others = lanes, lanes.tiles(x), {}

    def second(self, tile: Tile):
        """Second factor, before the swap."""
        if tile.exchange == 0:
            return self.own[tile.second]
        at = tile.second, tile.exchange
        if at not in self.others:
            self.others[at] = self.lanes.exchange(self.own[tile.second], tile.exchange)
        return self.others[at]

    def factors(self, tile: Tile):
        """Both factors of a tile."""
        lanes, x = self.lanes, self.own[tile.first]
        if tile.kind == "inner":
            y = lanes.zero(x) if tile.second is None else self.own[tile.second]
            return lanes.pack(x, y, 0), lanes.pack(x, y, 1)
        y = self.second(tile)
        if tile.kind == "crossed":
            y = lanes.swap(y)
        return x, lanes.choose(y, tile.exchange) if tile.kind == "halves" else y


@functools.cache
def channels(groups: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Channels (columns,) of the two factors of each column; -1: no such factor."""
    lanes = ArrayLanes(np)
    pairs = _Pairs(lanes, 1 + np.arange(groups * TILE)[None])  # 0 stands for no channel
    none = lanes.zero(pairs.own[0])
    found = []
    for tile in tiles_between(groups, 0, columns):
        if tile.kind == "channel":
            found.append((pairs.own[tile.first], none))
        else:
            found.append((none, none) if tile.kind in ("one", "zero") else pairs.factors(tile))
    first, second = (lanes.join([pair[i] for pair in found])[0] - 1 for i in range(2))
    return first, second


def constant_column(groups: int) -> int:
    """Index of the column that is constant 1."""
    return TILE * scheme(groups).index(Tile("one"))


def features(lanes, x, *, tiles: tuple[Tile, ...], halved: bool):
    """Columns of phi(x), (64, 8 tiles), of x (64, 16 or 32); halved: squares are x_a^2 / 2, as on the query side."""
    pairs = _Pairs(lanes, x)

    def feature(tile: Tile):
        if tile.kind in ("one", "zero"):
            return getattr(lanes, tile.kind)(pairs.own[0])
        if tile.kind == "channel":
            return pairs.own[tile.first]
        first, second = pairs.factors(tile)
        square = tile.exchange == 0 and tile.first == tile.second
        return lanes.multiply(first, lanes.half(second) if square and halved else second)

    return lanes.join([feature(tile) for tile in tiles])


def pull_back(lanes, x, u, start=None, *, tiles: tuple[Tile, ...], halved: bool):
    """Returns start (None: zeros) + sum_f u_f d phi_f / d x over the columns of `tiles`; u (64, 8 tiles) float32."""
    derivative = _Derivative(lanes, x, start)
    for tile, part in zip(tiles, lanes.tiles(u), strict=True):
        if tile.kind not in ("one", "zero"):
            getattr(derivative, tile.kind)(tile, lanes.add(part, part) if _doubled(tile, halved) else part)
    return derivative.result()


def _doubled(tile: Tile, halved: bool) -> bool:
    """Whether the derivative of a tile of squares is twice the factor."""
    return not halved and tile.kind == "product" and tile.exchange == 0 and tile.first == tile.second


class _Derivative:
    """Sums the derivatives of tiles. Sums for another lane are exchanged once, in `result`."""

    def __init__(self, lanes, x, start):
        self.lanes, self.pairs = lanes, _Pairs(lanes, x)
        self.own = [lanes.wide(pair) for pair in self.pairs.own]
        self.sums = dict(enumerate(lanes.tiles(start))) if start is not None else {}
        self.elsewhere = {}

    def _add(self, sums, at, x, y):
        """Adds x y to sums[at]."""
        lanes = self.lanes
        sums[at] = lanes.multiply_add(x, y, sums[at]) if at in sums else lanes.multiply(x, y)

    def _second(self, tile: Tile, x, y):
        """Adds x y to the derivative of the second factor."""
        if tile.exchange:
            self._add(self.elsewhere, (tile.second, tile.exchange), x, y)
        else:
            self._add(self.sums, tile.second, x, y)

    def channel(self, tile: Tile, u):
        at = tile.first
        self.sums[at] = self.lanes.add(self.sums[at], u) if at in self.sums else u

    def product(self, tile: Tile, u):
        self._add(self.sums, tile.first, u, self.lanes.wide(self.pairs.second(tile)))
        if tile.exchange or tile.first != tile.second:
            self._second(tile, u, self.own[tile.first])

    def crossed(self, tile: Tile, u):
        swap = self.lanes.swap
        self._add(self.sums, tile.first, u, swap(self.lanes.wide(self.pairs.second(tile))))
        self._second(tile, swap(u), swap(self.own[tile.first]))

    def halves(self, tile: Tile, u):
        lanes, at, e = self.lanes, (tile.second, tile.exchange), tile.exchange
        self._add(self.sums, tile.first, u, lanes.wide(lanes.choose(self.pairs.second(tile), e)))
        other = lanes.choose(lanes.multiply(u, self.own[tile.first]), e)
        self.elsewhere[at] = lanes.add(self.elsewhere[at], other) if at in self.elsewhere else other

    def inner(self, tile: Tile, u):
        for i, group in enumerate((tile.first, tile.second)):
            if group is not None:
                self._add(self.sums, group, self.lanes.spread(u, i), self.lanes.swap(self.own[group]))

    def result(self):
        lanes = self.lanes
        for (group, e), other in self.elsewhere.items():
            other = lanes.exchange(other, e)
            self.sums[group] = lanes.add(self.sums[group], other) if group in self.sums else other
        return lanes.join([self.sums[i] if i in self.sums else lanes.zero(own) for i, own in enumerate(self.own)])
