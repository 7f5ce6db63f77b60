"""Decays per channel within a chunk, as products: every pair of tokens has a border between them.

Two tokens j < i of a chunk of c = 2^n differ in their binary digits; let `size` = 2^m be the highest in which they do.
They lie in the two halves of a block of 2 size tokens, and the border between the halves splits the decay of the pair:

    exp2(sum g over j+1 .. i) = exp2(sum from j+1 to the border) exp2(sum from the border to i)

Both exponents are sums of log decays: none is positive, and none is a difference. A token is a key or a query of its
block by its digit, so a level needs one exponent and one operand per token, and M M^T holds all of its pairs. There are
log2(c) levels; a token and itself have no decay. The sums of a level follow from those of the level before it:

    prefix: from the beginning of the half to the token      suffix: from the next token to the end of the half

`pull_back` is the transpose of these additions. The gradient of a log decay is thereby a sum over exactly the pairs
that surround it, level by level: no two numbers cancel.

Arrays are (c, lanes) float32. Rows are chosen by a digit: whole tiles of 8 are taken apart for free, others selected.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

SUBLANES = 8


def halves(first, second, size: int):
    """Rows of `first` in the first half of each block of 2 size rows, of `second` in the second."""
    if size >= SUBLANES:
        return jnp.concatenate([(second if r & size else first)[r : r + size] for r in range(0, len(first), size)])
    tiles = -1, SUBLANES, first.shape[1]
    row = lax.broadcasted_iota(jnp.int32, (1, *tiles[1:]), 1)
    return jnp.where((row & size) == 0, first.reshape(tiles), second.reshape(tiles)).reshape(first.shape)


def sums(x):
    """[exponents of the level of size 1, 2, .., c / 2], prefix and suffix of the whole chunk, of log decays x."""
    prefix, suffix, levels = x, jnp.zeros_like(x), []
    for size in sizes(len(x)):
        levels.append(halves(suffix, prefix, size))
        other = _sibling(prefix + suffix, size)
        prefix, suffix = halves(prefix, prefix + other, size), halves(suffix + other, suffix, size)
    return levels, prefix, suffix


def pull_back(level: int, dlevel, dprefix, dsuffix):
    """The cotangents of prefix and suffix before a level of `sums`, of those of its exponents and of both after it."""
    size = 2**level
    other = _sibling(halves(dsuffix, dprefix, size), size)
    dprefix, dsuffix = dprefix + other, dsuffix + other
    return halves(dprefix, dprefix + dlevel, size), halves(dsuffix + dlevel, dsuffix, size)


def sizes(c: int) -> list[int]:
    """Sizes of the halves, by level."""
    return [2**level for level in range((c - 1).bit_length())]


def levels_of_pairs(c: int, heads: int):
    """(c, heads c): 1 + the level of row i and column j of any head, 0 where they are the same token; and i - j."""
    row, column = (lax.broadcasted_iota(jnp.int32, (c, heads * c), axis) for axis in (0, 1))
    column = column & (c - 1)
    differ = row ^ column
    return sum((differ >= size).astype(jnp.int32) for size in sizes(c)), row - column


def _sibling(x, size: int):
    """Row i is row i xor size of x."""
    if size >= SUBLANES:
        return jnp.concatenate([x[r ^ size : (r ^ size) + size] for r in range(0, len(x), size)])
    tiles = x.reshape(-1, SUBLANES, x.shape[1])
    earlier = pltpu.roll(tiles, size, 1).reshape(x.shape)
    if 2 * size == SUBLANES:
        return earlier
    return halves(pltpu.roll(tiles, SUBLANES - size, 1).reshape(x.shape), earlier, size)
