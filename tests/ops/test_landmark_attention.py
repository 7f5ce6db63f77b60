"""`landmark_attention` compared with its naive form in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.landmark_attention import (
    BEST,
    Retrieval,
    landmark_attention,
    landmark_attention_from,
    naive_landmark_attention,
)
from jaxzoo.ops.landmarks import LongFilter, extend_landmarks
from tests.pallas_kernels.shared import slow

B, H, G, K, V = 2, 4, 2, 5, 3
TAPS = {3: np.array([[0.9, -0.5], [0.4, 1.2], [-0.7, 0.8]]), 1: np.array([[0.8, -1.1]])}
CARRY = np.array([0.6, -0.3])
SOFT = Retrieval(gate="softmax")
CASES = [(20, 3, BEST), slow(20, 3, Retrieval(gate="softmax", n_blocks=2, chunk_size=4))]
CASES += [slow(*case, BEST) for case in ((1, 3), (9, 1), (5, 3), (9, 3))]
MORE = (SOFT, Retrieval(n_blocks=20), Retrieval(n_blocks=2), Retrieval(chunk_size=4))
CASES += [slow(20, 3, x) for x in MORE]


def inputs(t, size=3, dtype=np.float32, scale=2.0):
    """Queries, keys, values, F, and other queries and keys for the choice; and a cotangent of the output."""
    rng = np.random.default_rng(t)
    shapes = (B, t, H, K), (B, t, G, K), (B, t, G, V), (B, t, H, K), (B, t, G, K), (B, t, H, V)
    q, k, v, content_q, content_k, dy = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    long_filter = LongFilter(jnp.asarray(TAPS[size], np.float32), jnp.asarray(CARRY, np.float32))
    return (q * scale, k, v, long_filter, (content_q, content_k)), dy


def with_gradients(function, args, dy):
    @jax.jit
    def run(args, dy):
        y, pull_back = jax.vjp(lambda args: function(*args), args)
        return y, pull_back(dy)[0]

    return run(args, dy)


def truth(args, dy, retrieval=BEST):
    with jax.enable_x64(True):
        args, dy = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (args, dy))
        return with_gradients(functools.partial(naive_landmark_attention, retrieval=retrieval), args, dy)


def close(found, expected, tolerance=1e-5):
    """Leaf by leaf; what is 0 but for rounding has the scale of the others."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(initial=0), 1e-1))


@pytest.mark.parametrize(("t", "size", "retrieval"), CASES)
def test_definition(t, size, retrieval):
    """Kills: the own or an incomplete block retrieved, a landmark one token off, a tap turned around, a carry that is
    lost, a head's choice for another, contents that nothing reads, padding of a chunk, two sums of weights that are
    joined as one; a gate without gradient or with the wrong one."""
    args, dy = inputs(t, size)
    y, gradients = with_gradients(functools.partial(landmark_attention, retrieval=retrieval), args, dy)
    expected, true_gradients = truth(args, dy, retrieval)
    close(y, expected)
    close(gradients, true_gradients, 1e-4)


@pytest.mark.full
def test_contents_are_the_queries_and_keys_unless_given(default_compilation):
    """Kills: a default that reads something else."""
    (q, k, v, long_filter, _), _ = inputs(20)
    call = jax.jit(lambda *x: (landmark_attention(*x), landmark_attention(*x, (q, k))))
    np.testing.assert_array_equal(*call(q, k, v, long_filter))


def test_landmarks_of_blocks_without_keys_are_0():
    """Kills: blocks that are touched before they begin, also where the block before them is complete, and a write
    after the last one that lands on it."""
    (_, _, _, long_filter, (_, k)), _ = inputs(20)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def extended(places, t):
        return extend_landmarks(jnp.zeros((B, places, G, K)), k[:, :t], long_filter, jnp.zeros((B,), jnp.int32))

    for t, blocks in ((6, 2), (7, 3)):
        landmarks = np.asarray(extended(8, t))
        assert np.abs(landmarks[:, :blocks]).min() > 0
        np.testing.assert_array_equal(landmarks[:, blocks:], 0)
    np.testing.assert_array_equal(extended(2, 7), landmarks[:, :2])


def test_the_earliest_of_equal_blocks():
    """Kills a choice that depends on how the program is built: all keys are equal, and values tell the blocks."""
    q = k = jnp.ones((1, 9, 1, 1))
    v = (jnp.arange(9.0) // 3)[None, :, None, None]
    long_filter = LongFilter(jnp.ones((3, 1)), jnp.zeros((1,)))
    y = landmark_attention(q, k, v, long_filter)[0, :, 0, 0]
    np.testing.assert_allclose(y, [0, 0, 0, 1 / 4, 2 / 5, 3 / 6, 2 / 4, 4 / 5, 6 / 6], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extreme_scores(dtype):
    """Kills a softmax, or a gate, without its shift: scores of about 1e4 stay finite."""
    args, dy = inputs(20, dtype=dtype, scale=1e4)
    args = (*args[:4], (args[0], args[1]))
    y, gradients = with_gradients(landmark_attention, args, dy)
    assert y.dtype == dtype
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves((y, gradients)))


@pytest.mark.full
def test_gradients_of_a_block_that_all_retrieve_are_summed_in_float32():
    """Kills sums in bfloat16, which stop growing at 256 times a term: 998 queries retrieve block 0, the earliest of
    equal scores, beside one key or two of their own."""
    q, k, v = (jnp.zeros((1, 1000, 1, 4), jnp.bfloat16) for _ in range(3))
    long_filter = LongFilter(jnp.ones((2, 1)), jnp.zeros((1,)))
    run = lambda v: landmark_attention(q, k, v, long_filter).astype(jnp.float32).sum()  # noqa: E731
    gradient = np.asarray(jax.grad(run)(v), np.float32)[0, :2, 0, 0]
    np.testing.assert_allclose(gradient, [1.5 + 499 * (1 / 3 + 1 / 4), 0.5 + 499 * (1 / 3 + 1 / 4)], rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_memory_of_16k_tokens(dtype):
    """Kills an array of all pairs, of all queries' blocks or of all landmarks' scores: of (t, t) float32 numbers the
    gradient's program would need 1 GiB, of (t, size, k) 1 GiB more. Blocks of 128 tokens, a head of 64."""
    t, size = 2**14, 128
    q, k, v, dy = (jax.ShapeDtypeStruct((1, t, 1, 64), dtype) for _ in range(4))
    long_filter = LongFilter(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size, 1), (1,))))
    run = jax.jit(lambda dy, *args: jax.vjp(landmark_attention, *args)[1](dy))
    memory = run.lower(dy, q, k, v, long_filter).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 160 * 2**20


@pytest.mark.full
def test_a_step_copies_no_cache():
    """Kills a cast or a transposed copy of all keys for the sake of one query: the cache has 2^17 keys of 64."""
    slots, size = 2**17, 256
    q, k = (jax.ShapeDtypeStruct((1, n, 2, 64), jnp.bfloat16) for n in (1, slots))
    landmarks = jax.ShapeDtypeStruct((1, slots // size, 2, 64), jnp.float32)
    position = jax.ShapeDtypeStruct((1,), jnp.int32)
    compiled = jax.jit(landmark_attention_from).lower(q, k, k, landmarks, position).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < slots * 2 * 64 * 2 / 8
