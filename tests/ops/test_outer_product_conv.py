"""`outer_product_conv` compared with its naive form in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.outer_product_conv import naive_outer_product_conv, outer_product_conv, outer_product_conv_step
from tests.pallas_kernels.shared import full, slow

B, H, K, V = 2, 3, 2, 4


def in_float64(function, *inputs):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*inputs))


def draw(t, w, *, history, dtype=np.float64):
    rng = np.random.default_rng(t + w)
    q = rng.normal(size=(B, t, H, K))
    k, v = (rng.normal(size=(B, t + history, H, size)) for size in (K, V))
    return [x.astype(dtype) for x in (q, k, v, rng.normal(size=(w, H)))]


def run(q, k, v, taps, *, history, segment_ids=None, op=outer_product_conv):
    past = (k[:, :history], v[:, :history]) if history else None
    return op(q, k[:, history:], v[:, history:], taps, past, segment_ids=segment_ids)


truth = functools.partial(run, op=naive_outer_product_conv)


CORE = [(7, 3, False), (13, 40, True)]
FULL = [(1, 9, True), (30, 9, False)]
ALL = [(t, w, history) for t, w in ((1, 1), (1, 9), (7, 3), (13, 40), (30, 9)) for history in (False, True)]


@pytest.mark.parametrize(
    ("t", "w", "with_history"),
    [case if case in CORE else full(*case) if case in FULL else slow(*case) for case in ALL],
)
def test_values_and_gradients(t, w, with_history):
    """Kills: a filter of another head, keys and values of different times, a history that is forgotten or counted
    twice, a gradient that stops at a key channel."""
    history = w - 1 if with_history else 0
    inputs = draw(t, w, history=history)
    cotangent = np.random.default_rng(1).normal(size=(B, t, H, V))

    def with_gradients(function, *inputs):
        y, pull_back = jax.vjp(function, *inputs)
        return y, pull_back(jnp.asarray(cotangent, y.dtype))

    def by(function):
        return functools.partial(with_gradients, functools.partial(function, history=history))

    expected, derivatives = in_float64(by(truth), *inputs)
    y, gradients = jax.jit(by(run))(*(np.float32(x) for x in inputs))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for gradient, derivative in zip(gradients, derivatives, strict=True):
        np.testing.assert_allclose(gradient, derivative, rtol=0, atol=1e-4 * np.abs(derivative).max())


def test_documents(default_compilation):
    """Kills a product that crosses from one document into the next; compiled as users do."""
    q, k, v, taps = draw(13, 40, history=0)
    ids = np.stack([np.repeat([3, 1, 4], [1, 5, 7]), np.repeat([2, 9], [12, 1])]).astype(np.int32)
    expected = in_float64(functools.partial(truth, history=0, segment_ids=ids), q, k, v, taps)
    call = jax.jit(functools.partial(run, history=0, segment_ids=jnp.asarray(ids)))
    found = call(*(np.float32(x) for x in (q, k, v, taps)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_step():
    """Kills a filter in reverse, and a step that forgets its own key."""
    q, k, v, taps = draw(1, 9, history=8)
    expected = in_float64(functools.partial(truth, history=8), q, k, v, taps)[:, 0]
    q, k, v, taps = (np.float32(x) for x in (q, k, v, taps))
    found = jax.jit(outer_product_conv_step)(q[:, 0], k[:, -1], v[:, -1], taps, (k[:, :-1], v[:, :-1]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.full
def test_bfloat16_and_no_tokens():
    """Kills products that are rounded before they are summed: the rounding of the output alone is 2^-9."""
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in draw(30, 9, history=0)]
    expected = in_float64(functools.partial(truth, history=0), *(np.asarray(x, np.float64) for x in inputs))
    y = run(*inputs, history=0)
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) <= 2**-8 * np.linalg.norm(expected)
    assert run(*(x[:, :0] for x in inputs[:3]), inputs[3], history=0).shape == (B, 0, H, V)


@pytest.mark.full
def test_memory_of_one_product():
    """Kills a backward pass that keeps every key channel's product: temporaries stay below three times those of a
    single channel, while there are 16."""

    def bytes_of(channels):
        q, v = (jax.ShapeDtypeStruct((1, 512, 1, size), jnp.float32) for size in (channels, 16))
        loss = jax.grad(lambda q, k, v, taps: outer_product_conv(q, k, v, taps).sum(), argnums=(0, 1, 2, 3))
        compiled = jax.jit(loss).lower(q, q, v, jax.ShapeDtypeStruct((512, 1), jnp.float32)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(16) < 3 * bytes_of(1)
