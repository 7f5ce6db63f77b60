"""Random draws that recall tasks share, each for one example: `jax.vmap` them over keys or words.

A draw depends only on its key, or its random words of 32 bits, so an example is the same in every
batch. All draws of fixed size take words, because every call of a random generator adds to
compile time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.utils.array_typing import Array, Bool, Float, Int, PRNGKeyArray


def below(words: UInt[Array, "n"], size: int) -> Int[Array, "n"]:
    """Random words modulo `size`: their probabilities differ by at most a share `size / 2^32`."""
    return (words % jnp.uint32(size)).astype(jnp.int32)


def distinct(key: PRNGKeyArray, n: int, size: int) -> Int[Array, "n"]:
    """Draws an ordered tuple of `n` different integers below `size`, all such tuples equally likely.

    If `2 n <= size`: draw `n` integers, keep the first occurrence of each, redraw all later ones, and repeat until
    nothing repeats. The procedure only compares entries, so that its distribution is invariant under renaming the
    integers, which maps any tuple of different integers to any other. A redraw succeeds with probability above 1/2: the
    expected number of rounds is O(log n), at `n^2` comparisons per round.

    Otherwise: the first `n` places of the order of `size` random words, O(size log size). Equal words (probability
    below size^2 / 2^33) leave their integers in order. Raises `ValueError` if `n` exceeds `size`.
    """
    if n > size:
        raise ValueError(f"distinct: n={n} must be at most size={size}; there are no more different integers")
    if 2 * n > size:
        return jnp.argsort(jax.random.bits(key, (size,), jnp.uint32))[:n].astype(jnp.int32)

    def redraw(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        items, repeated, n_rounds = carry
        words = jax.random.bits(jax.random.fold_in(key, n_rounds), (n,), jnp.uint32)
        items = jnp.where(repeated, below(words, size), items)
        return items, repeats(items), n_rounds + 1

    start = (jnp.zeros(n, jnp.int32), jnp.ones(n, bool), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: carry[1].any(), redraw, start)[0]


def repeats(items: Int[Array, "n"]) -> Bool[Array, "n"]:
    """True if an equal item precedes."""
    return jnp.tril(items[:, None] == items[None, :], -1).any(1)


def until(
    holds: Callable[[Int[Array, "n"]], Bool[Array, ""]],
    draw: Callable[[PRNGKeyArray], Int[Array, "n"]],
    key: PRNGKeyArray,
) -> Int[Array, "n"]:
    """Draws integers again, with a new key in each round, until all satisfy the condition."""

    def redraw(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        n_rounds = carry[1]
        return draw(jax.random.fold_in(key, n_rounds)), n_rounds + 1

    def is_wrong(carry: tuple[Array, Array]) -> Array:
        drawn, n_rounds = carry
        return (n_rounds == 0) | ~holds(drawn)

    start = jnp.zeros(jax.eval_shape(draw, key).shape, jnp.int32), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(is_wrong, redraw, start)[0]


def is_odd_pairs(items: Int[Array, "n"]) -> Bool[Array, ""]:
    """True if items are odd at an odd number of adjacent places."""
    return (items[1:] & items[:-1] & 1).sum() % 2 == 1


def successive(words: UInt[Array, "size"], weights: Float[np.ndarray, "size"], n: int) -> Int[Array, "n"]:
    """Draws `n` distinct places one by one, each in proportion to its weight among those left. The distribution of
    `numpy.random.choice(size, n, replace=False, p=weights)`, order included, without its loop: place i waits for an
    exponential time of rate `weights[i]`, and the `n` shortest are taken in order (Gumbel top-k). Times are float32;
    weights are positive."""
    u = words.astype(jnp.float32) * 2.0**-32
    rates = jnp.asarray(weights / weights.max(), jnp.float32)
    return jnp.argsort(-jnp.log1p(-u) / rates)[:n].astype(jnp.int32)


def in_turn(words: UInt[Array, "n size"], weights: Float[np.ndarray, "n size"]) -> Int[Array, "n"]:
    """Draws a place for each of `n` in turn, in proportion to its own row of weights among the places that are left.
    Each place waits for an exponential time of rate `weights[j]`; the shortest is taken. Costs `n size` random words.
    Times are float32; weights are positive, and there are at least as many places as rows."""
    u = (words >> 8).astype(jnp.float32) * 2.0**-24  # below 1, so that every time is finite
    times = -jnp.log1p(-u) / jnp.asarray(weights / weights.max(), jnp.float32)

    def draw(is_free: Array, row: Array) -> tuple[Array, Array]:
        place = jnp.argmin(jnp.where(is_free, row, jnp.inf))
        return is_free.at[place].set(False), place

    return jax.lax.scan(draw, jnp.ones(times.shape[1], bool), times)[1].astype(jnp.int32)


def below_except(words: UInt[Array, "n"], size: int, excluded: Int[Array, "m"]) -> Int[Array, "n"]:
    """Maps random words to integers below `size` that avoid the `m < size` distinct ones in `excluded`. Draws a rank
    among the `size - m` allowed integers: rank r follows as many excluded integers as there are j with
    `sorted(excluded)[j] - j <= r`."""
    ranks = below(words, size - excluded.size)
    allowed_before = jnp.sort(excluded) - jnp.arange(excluded.size, dtype=jnp.int32)
    skipped = jnp.searchsorted(allowed_before, ranks, side="right", method="scan_unrolled")
    return ranks + skipped.astype(jnp.int32)


def steered(items: Int[Array, "n"], total: Int[Array, ""], odd: Bool[Array, ""]) -> Int[Array, "n"]:
    """Exchanges the first two items unless the number of inversions in their order, plus `total`, is odd (even) as
    asked for; `total` does not depend on the order."""
    wrong = (is_odd_order(items) ^ (total % 2 == 1)) != odd
    order = np.arange(items.size)
    order[:2] = 1, 0
    return jnp.where(wrong, items[order], items)


def first_steered(items: Int[Array, "n"], odd: Bool[Array, ""]) -> Int[Array, "n"]:
    """Replaces the first item by its neighbor `2 i <-> 2 i + 1` unless the sum is odd (even) as asked for."""
    wrong = (items.sum() % 2 == 1) != odd
    return items.at[0].set(jnp.where(wrong, items[0] ^ 1, items[0]))


def is_odd_order(items: Int[Array, "n"]) -> Bool[Array, ""]:
    """True if distinct `items` are in an odd permutation of their sorted order: parity of the number of inversions,
    with `n^2` comparisons; on a CPU their exclusive or is far cheaper than their sum."""
    inverted = jnp.triu(items[:, None] > items[None, :], 1)
    per_item = jax.lax.reduce(inverted, np.False_, jax.lax.bitwise_xor, (1,))
    return jax.lax.reduce(per_item, np.False_, jax.lax.bitwise_xor, (0,))
