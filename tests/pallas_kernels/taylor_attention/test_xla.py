"""`xla`: values, final states and all gradients against the float64 reference, and what it does not store."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import xla_chunks
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import TaylorState, taylor_attention, taylor_feature_count
from pallas_kernels.taylor_attention.features import feature_map
from pallas_kernels.taylor_attention.workloads import SHAPES
from pallas_kernels.taylor_attention.xla import final_state
from pallas_kernels.taylor_attention.xla_chunk import feature_map as xla_feature_map, pull_back
from tests.pallas_kernels.shared import all_shapes, assert_close, full, relative_l2, slow
from tests.pallas_kernels.taylor_attention.cases import Call, measured, truth

LENGTHS = (0, 1, 64, 65, 513)
GRID = {
    "plain": Call(t=0),
    "decay_grouped": Call(t=0, h=6, g=2, decay=True, eps=0.3),
    "raw": Call(t=0, g=1, normalize=False, scale=0.8, decay=True),
    "stateless": Call(t=0, state=False),
}
CORE = [("raw", 65)]
REST = [(setting, t) for setting in GRID for t in LENGTHS if (setting, t) not in CORE]


def at(call, t):
    return Call(**{**vars(call), "t": t})


def check(call, **options):
    """float32: 1e-5, its gradients 1e-4, as style.md."""
    outputs, gradients = measured(call, implementation="xla", **options)
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize(("setting", "t"), [*CORE, *(slow(*x) for x in REST)])
def test_values_states_gradients(setting, t):
    """Kills a wrong mask, carry, decay, remainder, group sum or gradient, with chunks chosen by length: random
    states in, random cotangents on output and state."""
    check(at(GRID[setting], t))


@pytest.mark.usefixtures("default_compilation")
def test_as_users_compile():
    """Kills wrong numbers of optimized programs alone: two chunks of 128 and a remainder."""
    check(at(GRID["decay_grouped"], 300))


@pytest.mark.parametrize(("t", "chunk_size", "platform"), [(300, None, "cpu"), full(23, 5, "cpu"), (23, 5, "cuda")])
def test_final_state(t, chunk_size, platform):
    """Kills sums of values or of keys that are not decayed between chunks, or by a rest as if it were a whole chunk:
    the state that a part of a sharded sequence passes on."""
    call = Call(t=t, h=4, g=2, decay=True, state=False)
    _, *dstate = call.cotangents()
    no_output = np.zeros((call.b, t, call.h, call.v))
    (_, *expected), (_, *expected_gradients) = truth(call, cotangents=[no_output, *dstate])
    k, v, ds, dz = (jnp.asarray(x, jnp.float32) for x in (*call.arrays()[1:], *dstate))

    @jax.jit
    def run(k, v, dstate):
        last = functools.partial(final_state, n_heads=4, decay=jnp.asarray(call.rates), chunk_size=chunk_size)
        state, pull_back = jax.vjp(last, k, v)
        return state, pull_back(dstate)

    with lowering_for(platform):
        state, gradients = run(k, v, TaylorState(ds, dz))
    assert_close(state, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize("chunk_size", [full(7), full(1)])
def test_chunks(chunk_size):
    """Kills errors at the borders of chunks: every cut of 65 tokens, all options at once."""
    check(at(GRID["decay_grouped"], 65), chunk_size=chunk_size)


@pytest.mark.parametrize("setting", ["decay_grouped", full("stateless")])
def test_many_chunks_at_once(setting, monkeypatch):
    """Kills: a state before a chunk that is another's, a lost group or remainder, in the form for accelerators: 7
    chunks of 5 tokens, 3 at once, and 3 more tokens."""
    call = at(GRID[setting], 38)
    numbers = call.b * call.h * taylor_feature_count(call.k) * (call.v + 1)
    monkeypatch.setattr(xla_chunks, "STATES_AT_ONCE", 3 * numbers)
    with lowering_for("cuda"):
        check(call, chunk_size=5)


@pytest.mark.full
def test_extreme_decay():
    """Kills powers that overflow: a head that forgets at once returns its own value, with finite gradients."""
    call = Call(t=40, h=2, g=2)
    q, k, v = (jnp.asarray(x, jnp.float32) for x in call.arrays()[:3])
    decay = np.float32([1e-30, 1.0])

    @jax.jit
    def run(*arrays):
        attend = functools.partial(taylor_attention, decay=decay, chunk_size=16, implementation="xla")
        y, pull_back = jax.vjp(attend, *arrays)
        return y, pull_back(2 * y)

    y, gradient = run(q, k, v)
    np.testing.assert_allclose(np.asarray(y)[:, :, 0], np.asarray(v)[:, :, 0], rtol=1e-5)
    assert all(np.isfinite(x).all() for x in gradient)


@pytest.mark.full
def test_bfloat16():
    """Kills bfloat16 sums: on inputs that bfloat16 holds, states are float32-exact, and outputs and gradients
    differ by the rounding of y (2^-9 each, in the result and in dy.y) alone; twice that is the bound."""
    call = Call(t=150, h=4, g=2, decay=True)
    arrays = call.arrays()
    arrays[:3] = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in arrays[:3]]
    cotangents = call.cotangents()
    cotangents[0] = np.asarray(jnp.asarray(cotangents[0], jnp.bfloat16), np.float64)
    (y, *state), gradients = measured(call, dtype=jnp.bfloat16, arrays=arrays, implementation="xla", chunk_size=32)
    (expected, *expected_state), expected_gradients = truth(call, arrays, cotangents)
    assert y.dtype == jnp.bfloat16
    assert relative_l2(y, expected) <= 2**-9
    assert_close(state, expected_state, 1e-5)
    assert_close(gradients, expected_gradients, 2**-8)


@pytest.mark.slow
def test_memory_does_not_grow_with_states():
    """Kills a stored state per chunk, features or scores of the whole sequence, forward or backward."""
    call = Call(t=512, h=1, g=1, k=6, v=2, state=False)
    arrays = [jnp.asarray(x, jnp.float32) for x in call.arrays()]
    gradient = jax.grad(lambda *x: taylor_attention(*x, chunk_size=16, implementation="xla").sum(), (0, 1, 2))
    sizes = [math.prod(shape) for shape in all_shapes(jax.make_jaxpr(gradient)(*arrays).jaxpr)]
    assert len(sizes) > 100
    # The largest is k, of 512 * 6 entries; features of all tokens, or 32 states and their sums, are larger.
    assert max(sizes) <= 512 * 6 < 512 // 16 * taylor_feature_count(6) * (2 + 2)
    long = [jax.ShapeDtypeStruct((1, 4096, 1, d), jnp.float32) for d in (16, 16, 64)]
    run = jax.jit(jax.grad(lambda *x: taylor_attention(*x, implementation="xla").sum(), (0, 1, 2)))
    temporary = run.lower(*long).compile().memory_analysis().temp_size_in_bytes
    inputs = 4 * 4096 * (16 + 16 + 64)
    assert temporary < 6 * inputs  # 4 stacked copies measured; a state of 153 x 64 per chunk would add 1.3 MB


@pytest.mark.full
def test_short_sequences_make_no_features():
    """Kills a quadratic path that pays for the state that nobody asked for."""
    arrays = jax.eval_shape(SHAPES["cpu"]["mqar_t64"].inputs)
    gradient = jax.grad(lambda *x: taylor_attention(*x, implementation="xla").sum(), (0, 1, 2))
    assert all(153 not in shape for shape in all_shapes(jax.make_jaxpr(gradient)(*arrays).jaxpr))
    with_state = jax.make_jaxpr(lambda *x: taylor_attention(*x, return_state=True, implementation="xla"))
    assert any(153 in shape for shape in all_shapes(with_state(*arrays).jaxpr))


def test_features_are_those_of_the_package():
    """Kills a layout of `xla` that drifts from `features.py`, and a wrong Jacobian."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(1, 2, 3, 5)), jnp.float32)
    u = jnp.asarray(rng.normal(size=(1, 2, 3, 21)), jnp.float32)

    @jax.jit
    def both(x, u):
        value, transpose = jax.vjp(feature_map, x)
        return (xla_feature_map(x), pull_back(x, u.swapaxes(2, 3))), (value, *transpose(u))

    (features, dx), (expected_features, expected_dx) = both(x, u)
    np.testing.assert_array_equal(features, expected_features)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-5, atol=1e-5)
