"""`block_sparse_attention` compared with its naive form in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.block_sparse_attention import block_sparse_attention, block_sparse_step, naive_block_sparse_attention
from tests.pallas_kernels.shared import full, slow

B, H, G, K, V = 2, 4, 2, 5, 3
TABLE = np.array([[0, -1, -1], [-1, 1, 0], [2, -1, 0], [3, 1, -1], [0, 4, 2], [3, 5, 4]])
"""Blocks that the queries of each of 6 blocks see: in any order, with gaps."""


def inputs(t, slots, dtype=np.float32, scale=2.0):
    rng = np.random.default_rng(t)
    shapes = (B, t, H, K), (B, slots, G, K), (B, slots, G, V), (B, t, H, V)
    q, k, v, dy = (rng.normal(size=shape) for shape in shapes)
    return tuple(jnp.asarray(x, dtype) for x in (scale * q, k, v, dy))


def with_gradients(function, q, k, v, dy):
    @jax.jit
    def run(q, k, v, dy):
        y, pull_back = jax.vjp(function, q, k, v)
        return y, pull_back(dy)

    return run(q, k, v, dy)


@pytest.mark.parametrize(
    ("t", "slots", "size", "start"),
    [
        (18, 18, 3, None),
        full(9, 18, 3, (4, 9)),
        slow(1, 3, 3, None),
        slow(1, 18, 3, (17, 0)),
        *(slow(*case, None) for case in ((5, 6, 3), (6, 6, 1))),
    ],
)
def test_definition(t, slots, size, start):
    """Kills: a block that sees its neighbour's choice, -1 taken for block 0, a key of the future, rows at one position,
    a gradient that reaches a gathered block once only."""
    q, k, v, dy = inputs(t, slots)
    table = jnp.asarray(np.where(slots // size > TABLE, TABLE, -1)[: slots // size], jnp.int32)
    first = None if start is None else jnp.asarray(start, jnp.int32)

    def by(op):
        return lambda *x: op(*x, table, first, block_size=size)

    y, gradients = with_gradients(by(block_sparse_attention), q, k, v, dy)
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(x, np.float64)) for x in (q, k, v, dy))
        truth, true_gradients = with_gradients(by(naive_block_sparse_attention), *wide)
    np.testing.assert_allclose(y, truth, rtol=0, atol=1e-5 * np.abs(truth).max())
    for found, expected in zip(gradients, true_gradients, strict=True):
        # Of a single key the gradients of the scores cancel: 0 but for rounding.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * max(np.abs(expected).max(), 1e-2))


def test_a_single_row_from_a_place_inside_of_a_block():
    """Kills queries of a batch of one that are put at the start of their block, and looked up at their own places."""
    q, k, v, _ = (x[:1] for x in inputs(7, 18))
    ops = (functools.partial(op, block_size=3) for op in (block_sparse_attention, naive_block_sparse_attention))
    y, expected = (jax.jit(op)(q, k, v, np.int32(TABLE), np.full(1, 4, np.int32)) for op in ops)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_step(default_compilation):
    """Kills: the row of another block, slots after the position, -1 taken for block 0; compiled as users do."""
    step = jax.jit(functools.partial(block_sparse_step, block_size=3))
    truth = jax.jit(functools.partial(naive_block_sparse_attention, block_size=3))
    for positions in ((0, 17), (5, 9), (3, 11)):
        q, k, v, _ = inputs(1, 18)
        y = step(np.asarray(q)[:, 0], k, v, np.int32(TABLE), np.int32(positions))
        expected = np.asarray(truth(q, k, v, np.int32(TABLE), np.int32(positions)))[:, 0]
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_gradients_of_a_block_that_all_see_are_summed_in_float32():
    """Kills sums over blocks in bfloat16, which stop growing at 256 times a term: all of 512 blocks see block 0."""
    n, size = 512, 2
    table = jnp.stack([jnp.zeros((n,), jnp.int32), jnp.arange(n, dtype=jnp.int32).at[0].set(-1)], axis=1)
    q, k, v = (jnp.zeros((1, n * size, 1, 4), dtype) for dtype in (jnp.bfloat16,) * 3)
    run = lambda v: block_sparse_attention(q, k, v, table, block_size=size).astype(jnp.float32).sum()  # noqa: E731
    gradient = np.asarray(jax.grad(run)(v), np.float32)[0, :, 0, 0]
    # The own block's queries see 1 and 2 keys; those of the other 511 blocks 3 and 4.
    np.testing.assert_allclose(
        gradient[:2], [1 + 1 / 2 + 511 * (1 / 3 + 1 / 4), 1 / 2 + 511 * (1 / 3 + 1 / 4)], rtol=0.01
    )


@pytest.mark.full
def test_extreme_scores():
    """Kills a softmax without its shift: scores of about 1e4 stay finite, in float32 and bfloat16."""
    for dtype in (jnp.float32, jnp.bfloat16):
        q, k, v, dy = inputs(18, 18, dtype, scale=1e4)
        y, gradients = with_gradients(
            lambda *x: block_sparse_attention(*x, jnp.asarray(TABLE, jnp.int32), block_size=3), q, k, v, dy
        )
        assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (y, *gradients))
