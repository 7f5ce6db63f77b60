"""Features of (64, 16) tiles in registers, and their derivative, by exchanges within quads of lanes: no matmul.

In the layout of wgmma the four lanes l = 0 .. 3 of a quad hold a row x of 16 channels between them, two pairs each:
a = x[2l, 2l + 1] and b = x[8 + 2l, 9 + 2l]. Features come in tiles of 8 columns, one pair a lane:

  a,  b,  a a,  b b,  a b,  a b~,  (a0 a1, b0 b1),  a tile with 1 in its first column, else 0;
  for e = 1, 2, 3, with c and d the pairs a and b of lane l ^ e:  a c',  b d',  a d,  a d~

with ~ for a swapped pair, and ' for one swapped in the upper of the lanes l and l ^ e alone. So every product of two
channels is made once: those of a with c straight in the lower lane and crossed in the upper one, those of a with d in
the lane of a. 153 features in 160 columns.

The scheme is written once, for lanes that are arrays (interpret mode), channel numbers (`channels`) or registers
(`mosaic_gpu_lanes.RegisterLanes`).
"""

import functools

import numpy as np

COLUMNS = 160
NEAR = 96  # columns up to e = 1; those of e = 2, 3 are the far ones
TILE = 8
ONE = 56  # the column of the constant


class ArrayLanes:
    """Pairs as arrays (rows, 2, 2, 2): the two bits of the lane, and the element. numpy: the module that has them."""

    def __init__(self, numpy):
        self.numpy = numpy

    def tiles(self, x):
        """(rows, 8 n) -> n tiles of pairs."""
        return [x[:, i : i + TILE].reshape(-1, 2, 2, 2) for i in range(0, x.shape[1], TILE)]

    def join(self, tiles):
        """The inverse of `tiles`."""
        return self.numpy.concatenate([x.reshape(-1, TILE) for x in tiles], 1)

    def wide(self, x):
        """In float32."""
        return x.astype(np.float32)

    def add(self, x, y):
        return x + y

    def multiply(self, x, y):
        return x * y

    def multiply_add(self, x, y, z):
        return x * y + z

    def half(self, x):
        return x * x.dtype.type(0.5)

    def one(self, like):
        """1 in the first column, else 0."""
        first = self.numpy.arange(TILE) == 0
        return self.numpy.zeros_like(like) + first.astype(like.dtype).reshape(1, 2, 2, 2)

    def swap(self, x):
        return x[..., ::-1]

    def exchange(self, x, e):
        """Those of lane l ^ e."""
        x = x[:, ::-1] if e & 2 else x
        return x[:, :, ::-1] if e & 1 else x

    def choose(self, x, e):
        """Swapped where l > l ^ e."""
        axis = 1 if e & 2 else 2
        lower, upper = self.numpy.split(x, 2, axis)
        return self.numpy.concatenate([lower, self.swap(upper)], axis)

    def pack(self, x, y, i):
        """(x_i, y_i)."""
        return self.numpy.stack([x[..., i], y[..., i]], -1)

    def spread(self, x, i):
        """(x_i, x_i)."""
        return self.pack(x, x, i)


def _factors(lanes, a, b):
    """The factors of each tile of products from tile 2 on, in order; None for the tile of the constant."""
    factors = [(a, a), (b, b), (a, b), (a, lanes.swap(b)), (lanes.pack(a, b, 0), lanes.pack(a, b, 1)), None]
    for e in (1, 2, 3):
        c, d = lanes.exchange(a, e), lanes.exchange(b, e)
        factors += [(a, lanes.choose(c, e)), (b, lanes.choose(d, e)), (a, d), (a, lanes.swap(d))]
    return factors


@functools.cache
def channels() -> tuple[np.ndarray, np.ndarray]:
    """The channels (160,) that each column multiplies: -1 for the second where there is one, for both where none."""
    lanes = ArrayLanes(np)
    a, b = lanes.tiles(np.arange(16)[None])
    none = np.full_like(a, -1)
    pairs = [(a, none), (b, none), *((none, none) if f is None else f for f in _factors(lanes, a, b))]
    first, second = (lanes.join([pair[i] for pair in pairs])[0] for i in range(2))
    return first, second


def features(lanes, x, *, halved: bool):
    """phi(x), (64, 160), of x (64, 16), both bf16; halved: squares are x_a^2 / 2, as on the query side."""
    a, b = lanes.tiles(x)
    factors = _factors(lanes, a, b)
    if halved:
        factors[0], factors[1] = (a, lanes.half(a)), (b, lanes.half(b))
    return lanes.join([a, b, *(lanes.one(a) if f is None else lanes.multiply(*f) for f in factors)])


def near_pull_back(lanes, x, u, *, halved: bool):
    """sum_f u_f d phi_f / d x over the first 96 columns: x (64, 16) bf16, u (64, 96) float32 -> (64, 16) float32."""
    pairs = lanes.tiles(x)
    a, b = map(lanes.wide, pairs)
    da, db, aa, bb, ab, across, inner, _, *others = lanes.tiles(u)
    if not halved:
        aa, bb = lanes.add(aa, aa), lanes.add(bb, bb)
    other_a, other_b = lanes.swap(a), lanes.swap(b)
    da = lanes.multiply_add(ab, b, lanes.multiply_add(aa, a, da))
    db = lanes.multiply_add(ab, a, lanes.multiply_add(bb, b, db))
    da = lanes.multiply_add(across, other_b, da)
    db = lanes.multiply_add(lanes.swap(across), other_a, db)
    da = lanes.multiply_add(lanes.spread(inner, 0), other_a, da)
    db = lanes.multiply_add(lanes.spread(inner, 1), other_b, db)
    return lanes.join(_exchanged(lanes, pairs, others, 1, (da, db)))


def far_pull_back(lanes, x, u, start):
    """start (64, 16) + the same sum over the other 64 columns, u (64, 64)."""
    pairs, u, sums = lanes.tiles(x), lanes.tiles(u), lanes.tiles(start)
    for i, e in enumerate((2, 3)):
        sums = _exchanged(lanes, pairs, u[4 * i : 4 * i + 4], e, sums)
    return lanes.join(sums)


def _exchanged(lanes, pairs, u, e, sums):
    """Adds the derivatives of the four tiles of e: those by the pairs of the other lane go back to it."""
    (a, b), (c, d), (da, db) = map(lanes.wide, pairs), (lanes.exchange(x, e) for x in pairs), sums
    ac, bd, ad, across = u
    wide_d = lanes.wide(d)
    da = lanes.multiply_add(ac, lanes.wide(lanes.choose(c, e)), da)
    db = lanes.multiply_add(bd, lanes.wide(lanes.choose(d, e)), db)
    da = lanes.multiply_add(across, lanes.swap(wide_d), lanes.multiply_add(ad, wide_d, da))
    dc = lanes.choose(lanes.multiply(ac, a), e)
    dd = lanes.multiply_add(ad, a, lanes.choose(lanes.multiply(bd, b), e))
    dd = lanes.multiply_add(lanes.swap(across), lanes.swap(a), dd)
    return lanes.add(da, lanes.exchange(dc, e)), lanes.add(db, lanes.exchange(dd, e))
