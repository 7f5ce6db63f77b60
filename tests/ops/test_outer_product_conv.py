"""The convolution of outer products against its definition in float64, pair by pair, with every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.outer_product_conv import outer_product_conv, outer_product_conv_step

B, H, K, V = 2, 3, 2, 4


def weights_truth(q, k, taps, before, documents):
    """`taps[a] (q_i . k_{i-a})` as `(b, i, j, h)` over the `before + t` keys, and whether j counts for i."""
    t, s = q.shape[1], k.shape[1]
    weights = np.zeros((B, t, s, H))
    for i in range(t):
        for a in range(min(len(taps), before + i + 1)):
            j = before + i - a
            same = np.ones(B, bool) if documents is None else documents[:, i] == documents[:, j]
            weights[:, i, j] = np.where(same[:, None], taps[a] * np.einsum("bhk,bhk->bh", q[:, i], k[:, j]), 0)
    return weights


def truth(q, k, v, taps, before=0, documents=None):
    return np.einsum("bijh,bjhv->bihv", weights_truth(q, k, taps, before, documents), v)


def draw(t, w, *, history, dtype=np.float64):
    rng = np.random.default_rng(t + w)
    q = rng.normal(size=(B, t, H, K))
    k, v = (rng.normal(size=(B, t + history, H, size)) for size in (K, V))
    return [x.astype(dtype) for x in (q, k, v, rng.normal(size=(w, H)))]


def run(q, k, v, taps, *, history, segment_ids=None):
    past = (k[:, :history], v[:, :history]) if history else None
    return outer_product_conv(q, k[:, history:], v[:, history:], taps, past, segment_ids=segment_ids)


SIZES = [(1, 1), (1, 9), (7, 3), (13, 40), (30, 9)]
QUICK = [(1, 1, False), (1, 9, True), (7, 3, False), (13, 40, False), (13, 40, True), (30, 9, True)]
REST = [(*size, history) for size in SIZES for history in (False, True) if (*size, history) not in QUICK]


@pytest.mark.parametrize(
    ("t", "w", "with_history"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_values_and_gradients(t, w, with_history):
    """Kills: a filter of another head, keys and values of different times, a history that is forgotten or counted
    twice, a gradient that stops at a key channel; gradients by the derivative of the sum, written out."""
    history = w - 1 if with_history else 0
    inputs = draw(t, w, history=history)
    expected = truth(*inputs, before=history)
    cotangent = np.random.default_rng(1).normal(size=expected.shape)

    @jax.jit
    def with_gradients(*inputs):
        y, pull_back = jax.vjp(lambda *x: run(*x, history=history), *inputs)
        return y, pull_back(jnp.asarray(cotangent, jnp.float32))

    y, gradients = with_gradients(*(jnp.asarray(x, jnp.float32) for x in inputs))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for i, gradient in enumerate(gradients):
        # The output is linear in each input: its gradient at a unit vector is the output there, against the cotangent.
        derivative = np.zeros(inputs[i].size)
        for n in range(inputs[i].size):
            unit = np.zeros(inputs[i].size)
            unit[n] = 1
            moved = [*inputs[:i], unit.reshape(inputs[i].shape), *inputs[i + 1 :]]
            derivative[n] = np.vdot(truth(*moved, before=history), cotangent)
        scale = np.abs(derivative).max()
        np.testing.assert_allclose(gradient, derivative.reshape(gradient.shape), rtol=0, atol=1e-4 * scale)


def test_documents():
    """Kills a product that crosses from one document into the next."""
    q, k, v, taps = draw(13, 40, history=0)
    ids = np.stack([np.repeat([3, 1, 4], [1, 5, 7]), np.repeat([2, 9], [12, 1])]).astype(np.int32)
    expected = truth(q, k, v, taps, documents=ids)
    found = run(*(jnp.asarray(x, jnp.float32) for x in (q, k, v, taps)), history=0, segment_ids=jnp.asarray(ids))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_step():
    """Kills a filter in reverse, and a step that forgets its own key."""
    q, k, v, taps = draw(1, 9, history=8)
    expected = truth(q, k, v, taps, before=8)[:, 0]
    q, k, v, taps = (jnp.asarray(x, jnp.float32) for x in (q, k, v, taps))
    found = outer_product_conv_step(q[:, 0], k[:, -1], v[:, -1], taps, (k[:, :-1], v[:, :-1]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_bfloat16_and_no_tokens():
    """Kills products that are rounded before they are summed: the rounding of the output alone is 2^-9."""
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in draw(30, 9, history=0)]
    expected = truth(*(np.asarray(x, np.float64) for x in inputs))
    y = run(*inputs, history=0)
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) <= 2**-8 * np.linalg.norm(expected)
    assert run(*(x[:, :0] for x in inputs[:3]), inputs[3], history=0).shape == (B, 0, H, V)


def test_memory_of_one_product():
    """Kills a backward pass that keeps every key channel's product: temporaries stay below three times those of a
    single channel, while there are 16."""

    def bytes_of(channels):
        q, v = (jax.ShapeDtypeStruct((1, 512, 1, size), jnp.float32) for size in (channels, 16))
        loss = jax.grad(lambda q, k, v, taps: outer_product_conv(q, k, v, taps).sum(), argnums=(0, 1, 2, 3))
        compiled = jax.jit(loss).lower(q, q, v, jax.ShapeDtypeStruct((512, 1), jnp.float32)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(16) < 3 * bytes_of(1)
