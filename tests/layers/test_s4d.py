"""S4D and the shift SSM against their recurrences in float64: values, states and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.s4d import S4D, Discrete, s4d_conv, s4d_kernel, s4d_prefill, s4d_step
from jaxzoo.layers.shift_ssm import shift_conv, shift_prefill, shift_step
from tests.mixers.moved import moved, quick_rngs
from tests.pallas_kernels.shared import full, slow

B, D, N, W = 2, 3, 4, 5


def complex_normal(rng, *shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def problem(t, seed=0):
    """Inputs, a system with decays between 0.5 and 1, and a state."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(0.5, 1, size=(D, N)) * np.exp(1j * rng.uniform(-np.pi, np.pi, size=(D, N)))
    system = Discrete(a, complex_normal(rng, D, N), complex_normal(rng, D, N))
    return rng.normal(size=(B, t, D)), system, rng.normal(size=(B, D, N, 2))


def recurrence(u, system, state):
    """One input after the other, as real and imaginary parts of complex128."""
    a, b, c = system
    x, rows = state[..., 0] + 1j * state[..., 1], []
    for i in range(u.shape[1]):
        x = a[None] * x + b[None] * u[:, i, :, None]
        rows.append(2 * (c[None] * x).sum(-1).real)
    y = np.stack(rows, axis=1) if rows else np.zeros(u.shape)
    return y, np.stack([x.real, x.imag], axis=-1)


def single(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.complex64 if np.iscomplexobj(x) else jnp.float32), tree)


def assert_close(found, expected, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1.0, np.abs(y).max(initial=0)))


@pytest.mark.parametrize("t", [17, full(0), slow(2), slow(1), slow(100)])
def test_s4d_prefill_and_steps(t):
    """Kills: powers off by one or of the wrong table, a state that is not decayed t times, inputs in the wrong order, a
    missing conjugate, t that fills no block."""
    u, system, state = problem(t)
    expected = recurrence(u, system, state)
    assert_close(jax.jit(s4d_prefill)(*single((u, system, state))), expected)
    u, system, stepped = single((u, system, state))
    outputs, step = [], jax.jit(s4d_step)
    for i in range(t):
        y, stepped = step(u[:, i], system, stepped)
        outputs.append(y)
    if t:
        assert_close((np.stack(outputs, axis=1), stepped), expected)
    whole = jax.jit(s4d_conv)(u, system)
    if t:
        assert_close(whole, recurrence(np.asarray(u, float), problem(t)[1], np.zeros(state.shape))[0])
    assert_close(whole, jax.jit(s4d_prefill)(u, system, jax.tree.map(np.zeros_like, stepped))[0])


@pytest.mark.full
def test_s4d_gradients():
    """Kills a table that is not differentiated, or a gradient of the state that is dropped."""
    u, system, state = problem(23)
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=u.shape), rng.normal(size=state.shape)

    def by_scan(u, system, state):
        def token(x, u_t):
            y, x = s4d_step(u_t, system, x)
            return x, y

        x, y = jax.lax.scan(token, state, u.swapaxes(0, 1))
        return y.swapaxes(0, 1), x

    with jax.enable_x64(True):
        expected = jax.tree.map(np.asarray, jax.vjp(by_scan, u, system, state)[1](cotangents))
    found = jax.jit(lambda *x: jax.vjp(s4d_prefill, *x)[1](single(cotangents)))(*single((u, system, state)))
    assert_close(found, expected, 1e-4)


@pytest.mark.slow
def test_s4d_kernel_of_16384_taps_in_little_memory():
    """Kills a table of all powers, 32 channels x 32 numbers x 16384 taps: 128 MiB, in the gradient too, and powers
    whose phase drifts: a float32 a has |a|^16384 = e^-1.6, and its own powers in float64 are the truth."""
    rng = np.random.default_rng(0)
    a = (np.exp(-1e-4) * np.exp(1j * rng.uniform(0, np.pi, size=(32, 32)))).astype(np.complex64)
    system = Discrete(*map(jnp.asarray, (a, np.ones_like(a), np.ones_like(a))))
    compiled = jax.jit(jax.value_and_grad(lambda s: jnp.square(s4d_kernel(s, 16384)).sum())).lower(system).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 2**20
    powers = np.exp(np.arange(16384) * np.log(a[:2].astype(complex))[..., None])
    expected = 2 * powers.sum(1).real.T
    found = s4d_kernel(Discrete(*(x[:2] for x in system)), 16384)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.slow
def test_s4d_prefill_of_4096_inputs_in_little_memory():
    """Kills a state for every token, in the gradient too: 4096 inputs of 16 channels are 0.25 MiB, their states of 32
    complex numbers would be 16 MiB."""
    system = Discrete(*[jax.ShapeDtypeStruct((16, 32), jnp.complex64)] * 3)
    u, state = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 4096, 16), (1, 16, 32, 2)))

    def loss(u, system, state):
        return sum(jnp.square(x).sum() for x in s4d_prefill(u, system, state))

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(u, system, state).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 2**20


@pytest.mark.parametrize("spectrum", ["lin", "inv"])
def test_initialisation(spectrum):
    """Kills another spectrum, a step out of its range, a C of variance 2."""
    s4d = S4D(300, d_state=6, spectrum=spectrum, dt_min=0.01, dt_max=0.5, rngs=quick_rngs())
    imag = [0, np.pi, 2 * np.pi] if spectrum == "lin" else [6 / np.pi * (6 / n - 1) for n in (1, 3, 5)]
    np.testing.assert_allclose(s4d.imag[...], np.tile(imag, (300, 1)), rtol=1e-6)
    np.testing.assert_allclose(-np.exp(s4d.log_neg_real[...]), -0.5, rtol=1e-6)
    log_dt = np.asarray(s4d.log_dt[...])
    assert np.log(0.01) <= log_dt.min() < np.log(0.0105)
    assert np.log(0.48) < log_dt.max() <= np.log(0.5001)
    np.testing.assert_allclose(np.median(log_dt), np.log(0.0707), atol=0.3)
    np.testing.assert_array_equal(s4d.b[...], np.tile([1.0, 0.0], (300, 3, 1)))
    c = np.asarray(s4d.c[...])
    np.testing.assert_allclose((c**2).sum(-1).mean(), 1, atol=0.1)
    np.testing.assert_allclose((c**2).mean((0, 1)), 0.5, atol=0.06)


@pytest.mark.full
@pytest.mark.parametrize("discretization", ["bilinear", "zoh"])
def test_discretization(discretization):
    """Kills the other rule, a dt that scales C, a sign: the definition of both rules, as matrices of one channel."""
    s4d, p = moved(lambda: S4D(D, d_state=2 * N, dt_min=0.1, dt_max=1.0, rngs=quick_rngs()))
    found = s4d(discretization)
    b, c = (p[name][..., 0] + 1j * p[name][..., 1] for name in ("b", "c"))
    for d in range(D):
        dt, eye = np.exp(p["log_dt"][d]), np.eye(N)
        a = np.diag(-np.exp(p["log_neg_real"][d]) + 1j * p["imag"][d])
        if discretization == "bilinear":
            left = np.linalg.inv(eye - dt / 2 * a)
            expected = left @ (eye + dt / 2 * a), left @ (dt * b[d])
        else:
            held = np.diag(np.exp(dt * np.diag(a)))
            expected = held, np.linalg.inv(a) @ (held - eye) @ b[d]
        assert_close([x[d] for x in found], [np.diag(expected[0]), expected[1], c[d]])


@pytest.mark.parametrize("t", [0, *(pytest.param(t, marks=pytest.mark.full) for t in (1, W - 1, W)), W + 1, 30])
def test_shift_ssm(t):
    """Kills a register that runs the wrong way, a correlation taken for a convolution, an old register that is dropped
    or kept too long: the shift as a matrix, in float64."""
    rng = np.random.default_rng(0)
    u, register = rng.normal(size=(B, t, D)), rng.normal(size=(B, W, D))
    b, c = rng.normal(size=(W, D)), rng.normal(size=(W, D))
    matrix = np.eye(W, k=-1)

    def truth(x):
        rows = []
        for i in range(t):
            x = np.einsum("vw,bwd->bvd", matrix, x) + b * u[:, i, None]
            rows.append((c * x).sum(1))
        return np.stack(rows, axis=1) if rows else np.zeros(u.shape), x

    expected = truth(register)
    arrays = single((u, b, c, register))
    assert_close(jax.jit(shift_prefill)(*arrays), expected)
    stepped, outputs, step = arrays[3], [], jax.jit(shift_step)
    for i in range(t):
        y, stepped = step(arrays[0][:, i], *arrays[1:3], stepped)
        outputs.append(y)
    if t:
        assert_close((jnp.stack(outputs, axis=1), stepped), expected)
        assert_close(shift_conv(*arrays[:3], segment_ids=None), truth(np.zeros_like(register))[0])
