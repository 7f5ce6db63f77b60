"""Taylor linear attention against its definition in float64 numpy: the polynomial of the scores for the
tokens of the call, and feature maps written out monomial by monomial for the tokens before it. Gradients
against central differences of that definition along random directions."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.taylor_attention import (
    TaylorState,
    empty_taylor_state,
    taylor_attention,
    taylor_attention_step,
    taylor_feature_count,
)

CHUNK = 4
SETTINGS = {
    "plain": {"h": 2, "g": 2},
    "decay": {"h": 4, "g": 2, "decay": (0.5, 0.9, 1.0, 0.7), "eps": 0.3},
    "raw": {"h": 3, "g": 1, "normalize": False, "scale": 0.8},
}


def psi(x):
    """Monomials 1, x_a, x_a x_b (a <= b) in the documented order, `(..., f)`."""
    widths = range(x.shape[-1])
    pairs = [x[..., a] * x[..., b] for a, b in itertools.combinations_with_replacement(widths, 2)]
    return np.stack([np.ones_like(x[..., 0]), *(x[..., a] for a in widths), *pairs], axis=-1)


def phi_coefficients(k_dim):
    pairs = itertools.combinations_with_replacement(range(k_dim), 2)
    return np.array([1.0] * (1 + k_dim) + [0.5 if a == b else 1.0 for a, b in pairs])


def truth(q, k, v, s, z, decay, *, scale=None, eps=1e-12, normalize=True):
    """(outputs, s, z) by the definition, all pairs of tokens at once."""
    t, h = q.shape[1:3]
    k, v = (np.repeat(x, h // x.shape[2], axis=2) for x in (k, v))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = np.einsum("bihk,bjhk->bhij", q, k)
    i, j = np.arange(t)[:, None], np.arange(t)[None, :]
    kept = np.where(i >= j, decay[:, None, None] ** np.maximum(i - j, 0), 0.0)
    weights = (1 + scores + scores**2 / 2) * kept
    phi = psi(q) * phi_coefficients(q.shape[-1])
    past = decay ** (np.arange(t) + 1)[:, None]
    numerator = np.einsum("bhij,bjhv->bihv", weights, v)
    numerator += past[:, :, None] * np.einsum("bihf,bhfv->bihv", phi, s)
    denominator = weights.sum(-1).swapaxes(1, 2) + past * np.einsum("bihf,bhf->bih", phi, z)
    features = psi(k) * (decay ** (t - 1 - np.arange(t))[:, None])[..., None]
    gone = decay**t
    s = gone[:, None, None] * s + np.einsum("bjhf,bjhv->bhfv", features, v)
    z = gone[:, None] * z + features.sum(1)
    return (numerator / (denominator + eps)[..., None] if normalize else numerator), s, z


def make_inputs(t, h, g, *, b=2, k_dim=3, v_dim=5, decay=None, seed=0, size=1.0):
    """q, k, v, s, z, decay in float64; `z` is a sum over real keys, so that sums of weights stay positive."""
    rng = np.random.default_rng(seed)
    shapes = [(h, k_dim), (g, k_dim), (g, v_dim)]
    q, k, v = (size * rng.normal(size=(b, t, *shape)) for shape in shapes)
    s = rng.normal(size=(b, h, taylor_feature_count(k_dim), v_dim))
    z = psi(rng.normal(size=(b, 2, h, k_dim))).sum(1)
    return [x.astype(np.float32).astype(np.float64) for x in (q, k, v, s, z, np.array(decay or (1.0,) * h))]


def in_float32(arrays):
    return [jnp.asarray(x, jnp.float32) for x in arrays]


def assert_close(actual, expected, tolerance=1e-5):
    """Every array within `tolerance` of the largest entry of its expectation (at least 1)."""
    for x, y in zip(jax.tree.leaves(actual), expected, strict=True):
        scale = max(1.0, np.abs(y).max(initial=0))
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=0, atol=tolerance * scale)


def check_values_and_gradients(op, definition, arrays, n_differentiable):
    """`op` and its VJP, with random cotangents on everything it returns, against `definition`."""
    rng = np.random.default_rng(7)
    expected = definition(*arrays)
    cotangents = [rng.normal(size=x.shape) for x in expected]

    @jax.jit
    def run(*inputs):
        out, pull = jax.vjp(lambda *a: tuple(jax.tree.leaves(op(*a))), *inputs)
        return out, pull(tuple(in_float32(cotangents)))

    out, gradients = run(*in_float32(arrays))
    assert_close(out, expected)

    def loss(index, move):
        moved = [x + move if i == index else x for i, x in enumerate(arrays)]
        return sum(np.vdot(y, c) for y, c in zip(definition(*moved), cotangents, strict=True))

    for index in range(n_differentiable):
        for _ in range(3):
            direction = rng.normal(size=arrays[index].shape)
            slope = (loss(index, 1e-5 * direction) - loss(index, -1e-5 * direction)) / 2e-5
            gradient = np.asarray(gradients[index], np.float64)
            scale = max(1.0, np.linalg.norm(gradient))
            np.testing.assert_allclose(np.vdot(gradient, direction), slope, rtol=0, atol=1e-4 * scale)


CASES = [("decay", t) for t in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)]
CASES += [(setting, t) for setting in ("plain", "raw") for t in (CHUNK, 2 * CHUNK + 3)]


@pytest.mark.parametrize(("setting", "t"), CASES)
def test_outputs_state_and_gradients(setting, t):
    """Kills a wrong mask, chunk carry, decay in carry or mask, remainder, group order, feature order, or
    gradient: everything from a random state."""
    options = dict(SETTINGS[setting])
    h, g, decay = options.pop("h"), options.pop("g"), options.pop("decay", None)

    def op(q, k, v, s, z, rates):
        rates = None if decay is None else rates
        state = TaylorState(s, z)
        return taylor_attention(
            q, k, v, decay=rates, initial_state=state, return_state=True, chunk_size=CHUNK, **options
        )

    def definition(*arrays):
        return truth(*arrays, **options)

    arrays = make_inputs(t, h, g, decay=decay)
    check_values_and_gradients(op, definition, arrays, 5 if decay is None else 6)


@pytest.mark.parametrize(("t", "chunk_size"), [(7, None), (7, 3), (257, None)])
def test_stateless_call(t, chunk_size):
    """Kills a quadratic path or a first chunk that differs from the definition, and a wrong default chunk."""
    *tokens, s, z, decay = make_inputs(t, 2, 1, decay=(0.9, 1.0))

    def op(q, k, v):
        return taylor_attention(q, k, v, decay=jnp.array([0.9, 1.0]), chunk_size=chunk_size)

    def definition(q, k, v):
        return truth(q, k, v, 0 * s, 0 * z, decay)[:1]

    check_values_and_gradients(op, definition, tokens, 3)


def test_hand_worked_case():
    """Kills a missing 1/2, a scale on the wrong side or a denominator without its own token.

    k = 1, scale 1: s_00 = 2, s_10 = 1, s_11 = 3, so weights 5, 2.5 and 8.5.
    """
    q, k = jnp.array([2.0, 1.0]).reshape(1, 2, 1, 1), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    v = jnp.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    y, state = taylor_attention(q, k, v, scale=1.0, return_state=True)
    np.testing.assert_allclose(y.ravel(), [10.0, (2.5 * 10 + 8.5 * 20) / 11], rtol=1e-6)
    np.testing.assert_allclose(state.z.ravel(), [2, 1 + 3, 1 + 9], rtol=1e-6)
    np.testing.assert_allclose(state.s.ravel(), [30, 10 + 60, 10 + 180], rtol=1e-6)
    q_scaled = taylor_attention(q * 5, k, v, scale=0.2)
    np.testing.assert_allclose(q_scaled, y, rtol=1e-6)


@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_follow_the_definition(setting):
    """Kills a step that decays late, reads before it writes, or pairs heads with the wrong keys."""
    options = dict(SETTINGS[setting])
    h, g, decay = options.pop("h"), options.pop("g"), options.pop("decay", None)
    arrays = make_inputs(5, h, g, decay=decay)
    expected = truth(*arrays, **options)
    q, k, v, s, z, rates = in_float32(arrays)
    if decay is not None:
        options["decay"] = rates
    step = jax.jit(lambda state, *token: taylor_attention_step(state, *token, **options))
    state, outputs = TaylorState(s, z), []
    for i in range(5):
        y, state = step(state, q[:, i], k[:, i], v[:, i])
        outputs.append(y)
    assert_close((jnp.stack(outputs, axis=1), state), expected)


def test_large_scores():
    """Kills float32 sums that lose digits at scores around +-30, across chunks."""
    arrays = make_inputs(19, 2, 2, size=2.6, seed=3)
    scores = np.einsum("bihk,bjhk->bhij", *arrays[:2]) / math.sqrt(3)
    assert 25 < np.abs(scores).max() < 35
    q, k, v, s, z, _ = in_float32(arrays)
    run = jax.jit(functools.partial(taylor_attention, return_state=True, chunk_size=5))
    assert_close(run(q, k, v, initial_state=TaylorState(s, z)), truth(*arrays))


def test_extreme_decay():
    """Kills powers that overflow: a head that forgets at once (1e-30) returns its own value, with finite
    gradients."""
    q, k, v, s, z, decay = in_float32(make_inputs(9, 2, 2, decay=(1e-30, 1.0)))

    def op(*a):
        return taylor_attention(*a[:3], initial_state=TaylorState(s, z), decay=a[3], chunk_size=CHUNK)

    @jax.jit
    def run(*arrays):
        y, pull = jax.vjp(op, *arrays)
        return y, pull(jnp.ones_like(y))

    y, gradients = run(q, k, v, decay)
    np.testing.assert_allclose(y[:, :, 0], v[:, :, 0], rtol=1e-5)
    assert all(np.isfinite(x).all() for x in gradients)


def test_bfloat16_sums_are_float32():
    """Kills bfloat16 accumulation: on inputs that bfloat16 holds exactly, the state is float32-exact and an
    output differs by its own rounding alone (relative L2 at most 2^-9)."""
    arrays = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in make_inputs(37, 2, 1)]
    expected, *expected_state = truth(*arrays)
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in arrays[:3])
    state = TaylorState(*in_float32(arrays[3:5]))
    run = jax.jit(functools.partial(taylor_attention, return_state=True, chunk_size=8))
    y, state = run(q, k, v, initial_state=state)
    assert y.dtype == jnp.bfloat16
    assert state.s.dtype == state.z.dtype == jnp.float32
    assert_close(state, expected_state)
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) <= 2**-9 * np.linalg.norm(expected)


def all_shapes(jaxpr):
    """Shapes of every intermediate array, those of inner programs included."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in eqn.outvars)
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from all_shapes(inner)


def test_memory_stays_linear():
    """Kills features, or scores, of the whole sequence, forward or backward, and a chunk body that stores
    them."""
    q, k, v = in_float32(make_inputs(512, 1, 1, b=1, k_dim=6, v_dim=2)[:3])
    gradient = jax.grad(lambda *a: taylor_attention(*a, chunk_size=16).sum(), (0, 1, 2))
    sizes = [math.prod(shape) for shape in all_shapes(jax.make_jaxpr(gradient)(q, k, v).jaxpr)]
    assert len(sizes) > 100
    assert max(sizes) < 512 * taylor_feature_count(6)


def test_short_sequences_make_no_features():
    """Kills a quadratic path that pays for the state that nobody asked for."""
    q, k, v = in_float32(make_inputs(9, 1, 1, k_dim=16)[:3])
    gradient = jax.grad(lambda *a: taylor_attention(*a).sum(), (0, 1, 2))
    assert all(153 not in shape for shape in all_shapes(jax.make_jaxpr(gradient)(q, k, v).jaxpr))
    state = empty_taylor_state(2, 1, 16, 5)
    with_state = jax.make_jaxpr(lambda *a: taylor_attention(*a, initial_state=state))(q, k, v)
    assert any(153 in shape for shape in all_shapes(with_state.jaxpr))


def test_errors():
    """Kills silent broadcasting of shapes that do not belong together."""
    q, k, v, s, z, decay = in_float32(make_inputs(3, 4, 2))
    with pytest.raises(ValueError, match="4 query heads must be a multiple of 3 key/value heads"):
        taylor_attention(q, q[:, :, :3], q[:, :, :3])
    with pytest.raises(ValueError, match="must share batch and time"):
        taylor_attention(q, k[:, :2], v)
    with pytest.raises(ValueError, match=r"decay of shape \(3,\) must have one entry a query head, \(4,\)"):
        taylor_attention(q, k, v, decay=decay[:3])
    with pytest.raises(ValueError, match=r"must be s=\(2, 4, 10, 5\), z=\(2, 4, 10\); make it with"):
        taylor_attention(q, k, v, initial_state=TaylorState(s[:, :2], z[:, :2]))
    with pytest.raises(ValueError, match="chunk_size=0 must be positive"):
        taylor_attention(q, k, v, chunk_size=0)
