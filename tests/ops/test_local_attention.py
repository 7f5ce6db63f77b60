"""`local_attention` compared with its naive form in float64: values, sums of weights and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.local_attention import attend_one, local_attention, naive_local_attention
from jaxzoo.ops.naive import attend_all
from tests.pallas_kernels.shared import full, slow

B, H, G, K, V = 2, 4, 2, 5, 3
CASES = {
    "one query": (1, 0, 4, 3, None),
    "blocks alone": (11, 0, 4, 0, None),
    "blocks and one before": (13, 0, 4, 4, None),
    "a window after a past": (17, 6, 4, 6, 7),
    "a window longer than the past": (9, 2, 4, 8, 9),
    "a past longer than the reach": (10, 9, 3, 3, 4),
    "one block, long past": (3, 9, 8, 5, 6),
    "one block, short past": (7, 2, 8, 5, 6),
}
"""Queries, past, block size, reach, window."""


def inputs(t, past, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(B, n, heads, w)) for n, heads, w in ((t, H, K), (past + t, G, K), (past + t, G, V)))
    dy, dlse = rng.normal(size=(B, t, H, V)), rng.normal(size=(B, t, H))
    return 2 * q, k, v, dy, dlse


def with_gradients(function, *inputs):
    """Outputs and gradients of `function(q, k, v)`; the last two inputs are the cotangents."""

    @jax.jit
    def run(q, k, v, *cotangents):
        y, pull_back = jax.vjp(function, q, k, v)
        return y, pull_back(cotangents)

    return run(*map(jnp.asarray, inputs))


CORE = ("a window after a past", "one block, short past")
FULL = ("blocks and one before",)


@pytest.mark.parametrize("name", [x if x in CORE else full(x) if x in FULL else slow(x) for x in CASES])
def test_definition(name):
    """Kills: a key too many or too few at the edge of a block, padding that is seen, heads of another group, a gradient
    of lse that is lost."""
    t, past, block, reach, window = CASES[name]
    q, k, v, dy, dlse = inputs(t, past)
    owner = np.full((B, past + t), 3, np.int32)
    owner[1, 0] = 2 if past else 3  # the first key of row 1 is another document's
    labels = () if window is None else (jnp.arange(past + t, dtype=jnp.int32)[None], jnp.asarray(owner))
    limits = () if window is None else (window - 1, 0)

    def by(op):
        return lambda *x: op(*x, labels, limits, block_size=block, reach=reach)

    with jax.enable_x64(True):
        expected, expected_gradients = with_gradients(by(naive_local_attention), q, k, v, dy, dlse)
    y, gradients = with_gradients(by(local_attention), *(np.float32(x) for x in (q, k, v, dy, dlse)))
    for found, truth in zip(y, expected, strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5 * max(1, np.abs(truth).max()))
    for found, truth in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-4 * max(1, np.abs(truth).max()))


@pytest.mark.full
def test_extreme_scores():
    """Kills a softmax without its shift: scores of +-1e4 at 16,000 tokens stay finite, in float32 and bfloat16."""
    rng = np.random.default_rng(0)
    for dtype in (jnp.float32, jnp.bfloat16):
        q, k, v = (jnp.asarray(scale * rng.normal(size=(1, 16_000, 1, 4)), dtype) for scale in (1e4, 1, 1))
        run = jax.jit(jax.value_and_grad(lambda *x: local_attention(*x, block_size=64, reach=64)[0].sum(), (0, 1, 2)))
        y, gradients = run(q, k, v)
        assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (y, *gradients))


def test_bfloat16():
    """Kills sums in bfloat16: two roundings of 2^-9 a value against the definition of the same rounded inputs."""
    q, k, v, *_ = (jnp.asarray(x, jnp.bfloat16) for x in inputs(200, 0))
    y, _ = local_attention(q, k, v, block_size=64, reach=64)
    with jax.enable_x64(True):
        truth = jax.jit(functools.partial(naive_local_attention, block_size=64, reach=64))
        expected = np.asarray(truth(*(np.asarray(x, np.float64) for x in (q, k, v)))[0])
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) < 5e-3 * np.linalg.norm(expected)


def test_one_query_and_all_its_keys(default_compilation):
    """Kills: keys that are not visible, another group's keys, a sum without its shift."""
    q, k, v, *_ = inputs(1, 7)
    visible = np.random.default_rng(1).random((B, 8)) < 0.6
    visible[:, -1] = True
    with jax.enable_x64(True):
        expected = jax.tree.map(np.asarray, jax.jit(attend_all)(100 * q, k, v, visible[:, None]))
    found = jax.jit(attend_one)(*(np.float32(x) for x in (100 * q[:, 0], k, v)), visible)
    for one, truth in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, truth[:, 0], rtol=0, atol=1e-5 * max(1, np.abs(truth).max()))
