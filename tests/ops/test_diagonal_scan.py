"""`diagonal_scan` compared with its naive form in float64: values, states and all gradients."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops import diagonal_scan as op
from jaxzoo.ops.diagonal_scan import CHUNK, diagonal_scan, diagonal_step, naive_diagonal_scan
from tests.ops.shared import assert_close, documents, in_float64, single, with_gradients
from tests.pallas_kernels.shared import full, slow

B, D, N = 2, 3, 4
KINDS = ("real", "complex")


def like(x, ndim):
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def coefficients(parameters, tokens):
    """A selective scan: `a = decay^(rate)` and `b = rate u B`; complex where the parameters are."""
    log_a, _ = parameters
    rate, b = tokens["rate"], tokens["b"]
    u = tokens["u"].astype(rate.dtype)
    a = jnp.exp(rate[..., None].astype(log_a.dtype) * like(log_a, rate.ndim + 1))
    return a, (rate * u)[..., None].astype(log_a.dtype) * b[..., None, :].astype(log_a.dtype)


def readout(parameters, h, tokens):
    """`Re sum_n c_n h_n + u`, which the output's dtype is taken from."""
    y = (h * like(parameters[1], h.ndim)).sum(-1)
    return (y.real + tokens["u"].astype(y.real.dtype)).astype(tokens["u"].dtype)


def problem(t, kind, seed=0):
    """Tokens, parameters and a random state, in float64."""
    rng = np.random.default_rng(seed)
    tokens = {"rate": rng.random((B, t, D)), "u": rng.normal(size=(B, t, D)), "b": rng.normal(size=(B, t, N))}
    log_a, c, state = -rng.random((D, N)), rng.normal(size=(D, N)), rng.normal(size=(B, D, N))
    if kind == "complex":
        log_a, c, state = (x + 1j * rng.normal(size=x.shape) for x in (log_a, c, state))
        tokens["b"] = tokens["b"] + 1j * rng.normal(size=tokens["b"].shape)
    return tokens, (log_a, c), state


def run(tokens, parameters, state, ids=None, scan=diagonal_scan, **options):
    functions = (functools.partial(f, parameters) for f in (coefficients, readout))
    return scan(tokens, *functions, state, segment_ids=ids, **options)


recurrence = functools.partial(run, scan=naive_diagonal_scan)


CORE = (("platform", True, "complex"), ("tree", False, "real"))
FULL = (("platform", False, "real"),)


@pytest.mark.parametrize(
    ("by", "packed", "kind"),
    [
        case if case in CORE else full(*case) if case in FULL else slow(*case)
        for case in itertools.product(("platform", "tree"), (False, True), KINDS)
    ],
)
def test_values_and_gradients(kind, packed, by, monkeypatch):
    """Kills: a wrong chunk carry in either pass, padding after the last token that moves the state or a gradient, a
    leak across a document (at a border of a chunk too), a gradient missing its conjugate or with one too many; on a
    CPU, and as elsewhere."""
    if by == "tree":
        monkeypatch.setattr(op.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
        monkeypatch.setattr(op, "GROUP", 3)
    t = 2 * CHUNK + 19
    inputs = problem(t, kind)
    ids = documents(t, CHUNK) if packed else None
    rng = np.random.default_rng(1)
    dy, dstate = rng.normal(size=(B, t, D)), rng.normal(size=(B, D, N))
    dstate = dstate + 1j * rng.normal(size=dstate.shape) if kind == "complex" else dstate
    values, gradients = in_float64(with_gradients, jax.jit(lambda *x: recurrence(*x, ids)), inputs, (dy, dstate))
    ids, chunk_size = None if ids is None else jnp.asarray(ids), 16 if by == "tree" else CHUNK
    call = jax.jit(functools.partial(run, ids=ids, chunk_size=chunk_size))
    found, found_gradients = with_gradients(call, single(inputs), single((dy, dstate)))
    assert_close(found, values, 1e-5)
    assert_close(found_gradients, gradients, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_short_sequences_and_steps(kind, default_compilation):
    """Kills: padding that enters a state, a chunk that is always read, a step that differs from the sequence: chunks of
    at most 4 tokens, which 5 and 9 do not fill; compiled as users do."""
    lengths = (0, 1, 5, 8, 9)

    @jax.jit
    def both(tokens, parameters, state):
        functions = tuple(functools.partial(f, parameters) for f in (coefficients, readout))

        def step(state, now):
            y, state = diagonal_step(now, *functions, state)
            return state, (state, y)

        stepped = jax.lax.scan(step, state, jax.tree.map(lambda x: x.swapaxes(0, 1), tokens))[1]
        cut = {t: jax.tree.map(lambda x, t=t: x[:, :t], tokens) for t in lengths}
        return stepped, {t: run(cut[t], parameters, state, chunk_size=4) for t in lengths}

    tokens, parameters, state = single(problem(9, kind))
    (states, outputs), found = both(tokens, parameters, state)
    for t in lengths:
        y, last = found[t]
        assert y.shape == (B, t, D)
        assert_close(y, np.asarray(outputs).swapaxes(0, 1)[:, :t], 1e-5)
        assert_close(last, states[t - 1] if t else state, 1e-5)


@pytest.mark.parametrize("by", ["platform", pytest.param("tree", marks=pytest.mark.full)])
def test_a_of_zero_and_of_one(by, monkeypatch):
    """Kills a logarithm of `a`, a quotient of two products, and products that underflow and are divided by: `a` is 0,
    1e-30 or 1 in turn, over 300 tokens, in values and gradients."""
    if by == "tree":
        monkeypatch.setattr(op.lax, "platform_dependent", lambda *arrays, cpu, default: default(*arrays))
    rng = np.random.default_rng(0)
    a = np.array([1.0, 1e-30, 1.0, 0.0, 1.0])[rng.integers(0, 5, size=(B, 300, D))]
    b, state, dy = (rng.normal(size=shape) for shape in (a.shape, (B, D), a.shape))

    def scan(a, b, state):
        return diagonal_scan((a, b), lambda tokens: tokens, lambda h, _: h, state)[0]

    h, states, g, da, db = state, [], np.zeros((B, D)), np.zeros_like(a), np.zeros_like(a)
    for i in range(300):
        h = a[:, i] * h + b[:, i]
        states.append(h)
    for i in reversed(range(300)):
        g = dy[:, i] + (a[:, i + 1] * g if i < 299 else 0)
        da[:, i], db[:, i] = g * (states[i - 1] if i else state), g
    y, gradients = with_gradients(jax.jit(scan), single((a, b, state)), single(dy))
    assert_close(y, np.stack(states, axis=1), 1e-5)
    assert_close(gradients, (da, db, a[:, 0] * g), 1e-5)


def test_one_a_for_all_tokens():
    """Kills an `a` that is not broadcast: a decay by channel, over chunks that the last one does not fill."""
    rng = np.random.default_rng(0)
    a, b, h = rng.random(D), rng.normal(size=(B, 7, D)), rng.normal(size=(B, D))
    arrays = single((a, b, h))
    y, last = diagonal_scan(arrays[1], lambda b: (arrays[0], b), lambda h, _: h, arrays[2], chunk_size=3)
    for i in range(7):
        h = a * h + b[:, i]
        assert_close(y[:, i], h, 1e-6)
    assert_close(last, h, 1e-6)


@pytest.mark.parametrize("dtype", [pytest.param(jnp.float32, marks=pytest.mark.full), jnp.bfloat16])
def test_a_long_sequence(dtype):
    """Kills sums or states in bfloat16, and errors that grow with the length: 16384 tokens with decays near 1, and
    inputs and outputs rounded to 2^-9 each."""
    tokens, parameters, state = problem(16384, "complex")
    tokens = {"rate": 1e-3 * tokens["rate"], "u": tokens["u"], "b": np.ones((B, 16384, N), complex)}
    rounded = jnp.asarray(tokens["u"], dtype)
    with jax.enable_x64(True):
        exact = {**tokens, "u": np.asarray(rounded, np.float64)}
        expected, last = jax.tree.map(np.asarray, jax.jit(recurrence)(exact, parameters, state, None))
    single_tokens = {**single(tokens), "u": rounded}
    y, found = jax.jit(run)(single_tokens, *single((parameters, state)))
    assert (y.dtype, found.dtype) == (dtype, jnp.complex64)
    error = np.linalg.norm(np.asarray(y, np.float64) - expected) / np.linalg.norm(expected)
    assert error < (1e-4 if dtype == jnp.float32 else 4e-3)
    assert_close(found, last, 1e-4)


@pytest.mark.full
def test_memory_of_a_long_sequence():
    """Kills a backward pass that keeps a state, or its coefficients, for every token: 4096 tokens of 32 channels are
    0.5 MiB an array, their states of 64 numbers a channel would be 32 MiB."""
    shapes = {"rate": (1, 4096, 32), "u": (1, 4096, 32), "b": (1, 4096, 64), "log_a": (32, 64), "c": (32, 64)}
    x = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    def loss(tokens, parameters):
        return jnp.square(run(tokens, parameters, jnp.zeros((1, 32, 64)))[0]).sum()

    tokens = {name: x[name] for name in ("rate", "u", "b")}
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(tokens, (x["log_a"], x["c"])).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 2**20
