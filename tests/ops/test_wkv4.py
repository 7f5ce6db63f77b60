"""`wkv4` compared with its naive form in float64: values, states and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops import wkv4 as module
from jaxzoo.ops.wkv4 import Wkv4State, empty_state, naive_wkv4, wkv4, wkv4_step
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import certificates
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.wkv4.xla import CHUNK, by_tree, in_turn
from tests.ops.shared import assert_close, documents, in_float64, with_gradients
from tests.pallas_kernels.shared import needs_eight_devices

B, D = 2, 5
LONG = 2 * CHUNK + 7
DECAYS = np.array([1e-3, 0.05, 0.5, 3.0, 20.0])
"""The published initialisation spans e^-5 .. e^3, by channel."""


def run(k, v, w, u, state, ids, op=wkv4):
    """Outputs, and the final state without its scale: the mean value of the past, the logarithm of its weights."""
    y, after = op(k, v, w=w, u=u, segment_ids=ids, initial_state=Wkv4State(*state))
    return y, after.num / after.den, after.max + jnp.log(after.den)


recurrence = functools.partial(run, op=naive_wkv4)


def problem(t, *, size=1.0, seed=0):
    """Keys with that standard deviation, values, decays, bonuses and a random state, in float64."""
    rng = np.random.default_rng(seed)
    k, v = size * rng.normal(size=(B, t, D)), rng.normal(size=(B, t, D))
    state = (rng.normal(size=(B, D)), 0.5 + rng.random((B, D)), size * rng.normal(size=(B, D)))
    return (k, v, DECAYS, rng.normal(size=D)), state


@pytest.mark.parametrize(
    ("packed", "size", "scan"),
    [
        pytest.param(False, 1.0, in_turn, marks=pytest.mark.slow),
        (True, 1.0, by_tree),
        (False, 30.0, in_turn),
        pytest.param(True, 30.0, in_turn, marks=pytest.mark.full),
    ],
)
def test_values_and_gradients(packed, size, scan, monkeypatch):
    """Kills: a bonus in the state, a decay of the token that is just written, a chunk without its past, a document that
    reads the one before it or is scaled by its largest key; an overflow (keys up to 100); a state without gradient. On
    a CPU tokens are taken in turn; here also as accelerators take them."""
    monkeypatch.setattr("pallas_kernels.wkv4.xla.in_turn", scan)
    inputs, state = problem(LONG, size=size)
    ids = documents(LONG, CHUNK) if packed else None
    rng = np.random.default_rng(1)
    cotangents = tuple(rng.normal(size=shape) for shape in ((B, LONG, D), (B, D), (B, D)))

    def of(function, scale):
        call = lambda k, v, w, u, num, den: function(k, v, w, u, (num, den, scale), ids)  # noqa: E731
        return jax.jit(functools.partial(with_gradients, call))

    expected = in_float64(of(recurrence, state[2]), (*inputs, *state[:2]), cotangents)
    single = jax.tree.map(jnp.float32, (inputs, state, cotangents))
    ids = None if ids is None else jnp.asarray(ids)
    found = of(run, single[1][2])((*single[0], *single[1][:2]), single[2])
    # A float32 exponent of 100 is off by up to 4e-6, and so is a weight.
    assert_close(found[0], expected[0], 1e-5 if size == 1.0 else 3e-5)
    assert_close(found[1], expected[1], 1e-4)


def test_short_sequences_and_steps(default_compilation):
    """Kills: padding that enters a state, a chunk that is always read, a step that differs from the sequence;
    compiled as users do."""
    lengths = (0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1)
    (k, v, w, u), state = jax.tree.map(np.float32, problem(CHUNK + 1))

    @jax.jit
    def both(k, v, w, u, state):
        def step(state, now):
            y, state = wkv4_step(state, *now, w=w, u=u)
            return state, (state, y)

        stepped = jax.lax.scan(step, state, (k.swapaxes(0, 1), v.swapaxes(0, 1)))[1]
        return stepped, {t: wkv4(k[:, :t], v[:, :t], w=w, u=u, initial_state=state) for t in lengths}

    (states, outputs), found = both(k, v, w, u, Wkv4State(*state))
    for t in lengths:
        y, after = found[t]
        assert y.shape == (B, t, D)
        assert_close(y, np.asarray(outputs).swapaxes(0, 1)[:, :t], 1e-5)
        assert_close(tuple(after), tuple(np.asarray(x)[t - 1] for x in states) if t else state, 1e-5)


def test_two_tokens_by_hand():
    """Kills: a decay between neighbours (there is none: e^{-(t-1-i) w} is 1), a bonus of the past."""
    k, v = np.log(np.float32([[2, 3, 5]]))[..., None], np.float32([[7, 11, 13]])[..., None]
    y, state = jax.tree.map(np.asarray, jax.jit(wkv4)(k, v, w=np.log(np.float32([4])), u=np.log(np.float32([10]))))
    expected = [7, (2 * 7 + 30 * 11) / 32, (2 / 4 * 7 + 3 * 11 + 50 * 13) / (2 / 4 + 3 + 50)]
    np.testing.assert_allclose(y[0, :, 0], expected, rtol=1e-6)
    weights = 2 / 16 + 3 / 4 + 5
    np.testing.assert_allclose((state.den * np.exp(state.max))[0, 0], weights, rtol=1e-6)
    np.testing.assert_allclose((state.num / state.den)[0, 0], (2 / 16 * 7 + 3 / 4 * 11 + 5 * 13) / weights, rtol=1e-6)


@pytest.mark.parametrize("sign", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(-1, marks=pytest.mark.slow)])
def test_extreme_keys_and_decays(sign):
    """Kills: 0/0 where all keys are -80 (e^-80 underflows with any decay), inf where they are 80, and a scale that
    stays behind when keys fall by 160 from one token to the next; also in a document after one with other keys."""
    (k, v, _, u), _ = problem(LONG)
    k = k + (80.0 * sign if sign else 80.0 * (-1) ** (np.arange(LONG) // 3)[None, :, None])
    w = np.array([1e-6, 1e-3, 1.0, 50.0, 1e4])
    ids, none = documents(LONG, CHUNK), (np.zeros((B, D)), np.zeros((B, D)), np.zeros((B, D)))
    expected = in_float64(jax.jit(lambda *inputs: recurrence(*inputs, none, ids)), k, v, w, u)
    k, v, w, u = jax.tree.map(jnp.float32, (k, v, w, u))

    def loss(k, v, w, u):
        y, after = wkv4(k, v, w=w, u=u, segment_ids=jnp.asarray(ids))
        return (y * v).sum(), (y, after.num / after.den, after.max + jnp.log(after.den))

    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(k, v, w, u)
    assert_close(found, expected, 3e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))


@pytest.mark.full
def test_bfloat16():
    """Kills: sums and states in bfloat16. Only the inputs and the output are rounded, to 2^-9 each."""
    (k, v, w, u), state = problem(300)
    k, v = (jnp.asarray(x, jnp.bfloat16) for x in (k, v))
    rounded = (np.asarray(x, np.float64) for x in (k, v))
    expected, *_ = in_float64(recurrence, *rounded, w, u, state, None)
    w, u, state = jax.tree.map(jnp.float32, (w, u, state))
    y, after = wkv4(k, v, w=w, u=u, initial_state=Wkv4State(*state))
    assert (y.dtype, after.num.dtype, after.max.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


@pytest.mark.slow
def test_16k_tokens():
    """Kills: errors that add up over a long text, in a channel that hardly forgets (w = 1e-6), and a backward pass that
    keeps what is inside the chunks: inputs and gradients are 0.3 MiB each."""
    t, w = 16384, np.array([1e-6, 1e-4, 1e-2, 1.0, 20.0])
    (k, v, _, u), _ = problem(t, size=3.0)
    none = (np.zeros((B, D)),) * 3
    expected = in_float64(jax.jit(recurrence, static_argnums=5), k, v, w, u, none, None)
    k, v, w, u = jax.tree.map(jnp.float32, (k, v, w, u))
    found = jax.jit(functools.partial(run, ids=None, state=tuple(empty_state(B, D))))(k, v, w, u)
    # The exponents of the state, up to 12, are rounded at every token; the roundings of 1e4 tokens add up like 1e2.
    assert_close(found, expected, 1e-4)
    loss = lambda *inputs: (run(*inputs, ids=None, state=tuple(empty_state(B, D)))[0] * v).sum()  # noqa: E731
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(k, v, w, u).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * k.nbytes
    assert all(np.isfinite(x).all() for x in compiled(k, v, w, u))


def programs(**options) -> dict[str, str]:
    """The traced programs of `wkv4` on a GPU, with kernels and without them: whether they name the choice."""
    k = jax.ShapeDtypeStruct((8, 32, 1024), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((1024,), jnp.float32)
    traced = {}
    for setting in ("all", "none"):
        with lowering_for("cuda"), certificates.using(setting):
            traced[setting] = str(jax.make_jaxpr(lambda k, w: wkv4(k, k, w=w, u=w, **options)[0])(k, w))
    return {name: "by_target" in text for name, text in traced.items()}


def test_who_takes_kernels():
    """Kills kernels that are taken without a certificate, for another chunk size than theirs, or for two dtypes."""
    assert programs() == {"all": True, "none": False}
    assert programs(chunk_size=16) == {"all": False, "none": False}
    with lowering_for("cuda"), certificates.using("all"):
        k = jax.ShapeDtypeStruct((1, 8, 256), jnp.bfloat16)
        assert module._kernel_form(k, k) is not None
        assert module._kernel_form(k, jax.ShapeDtypeStruct(k.shape, jnp.float32)) is None


@needs_eight_devices
@pytest.mark.full
def test_kernels_on_meshes():
    """Kills a kernel that the compiler would have to partition, and one for parts of a sequence."""
    for axes, expected in (({"data": 2, "tensor": 4}, True), ({"data": 2, "sequence": 4}, False)):
        with jax.set_mesh(make_mesh(MeshConfig(**axes))):
            assert programs() == {"all": expected, "none": False}
    with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=4))), lowering_for("cuda"):
        (k, v, w, u), state = jax.tree.map(jnp.float32, problem(20))
        wide = lambda x: jnp.tile(x, (1,) * (x.ndim - 1) + (256,))[..., :1024]  # noqa: E731
        inputs = [*map(wide, (k, v, w, u)), Wkv4State(*map(wide, state))]
        call = lambda k, v, w, u, state: wkv4(k, v, w=w, u=u, initial_state=state)  # noqa: E731
        with certificates.using("none"):
            expected = jax.jit(call)(*inputs)
        with certificates.using("all"):
            assert_close(jax.jit(lambda *x: call(*x))(*inputs), expected, 1e-5)
