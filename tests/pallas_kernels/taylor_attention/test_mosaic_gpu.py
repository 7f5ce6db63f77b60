"""The Hopper kernels of Taylor attention, run by Pallas' GPU interpreter, against a float64 quadratic
reference.

Set NPROC=16 before Python starts: XLA's pool of threads must hold every blocking callback, or the interpreter
deadlocks. wgmma with its A operand in registers has no interpreter: those operands pass through shared memory
here. That path, and speed, need a device.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the Mosaic GPU kernels need jax >= 0.11.2", allow_module_level=True)

from pallas_kernels.taylor_attention import mosaic_gpu, mosaic_gpu_layout, mosaic_gpu_vjp
from tests.pallas_kernels.shared import relative_l2

interpret_gpu = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call")
pytestmark = pytest.mark.skipif(int(os.environ.get("NPROC", "0")) < 16, reason="set NPROC=16: fewer threads deadlock")

# bf16 rounds by up to 2^-9 = 2e-3 (rms 1.1e-3). Outputs add, in quadrature, the roundings of P or ds, of the
# features, of the published state and of the result: four roundings, rms 2.3e-3 measured. Gradients of q and
# k add those of dnum and y.
VALUE_BOUND = 4e-3
GRADIENT_BOUND = 8e-3


def slow(*values):
    """A case for `-m slow`: the interpreter takes some ten seconds for each."""
    return pytest.param(*values, marks=pytest.mark.slow)


def features(x):
    rows, cols = np.triu_indices(x.shape[-1])
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, x[..., rows] * x[..., cols]], -1)


def reference(q, k, v, s0, z0, gamma, scale, normalize):
    """Quadratic in t, any precision. gamma (h,). Returns y and the last state."""
    t, h = q.shape[1:3]
    k, v = (jnp.repeat(x, h // x.shape[2], 2) for x in (k, v))
    logits = scale * jnp.einsum("bihk,bjhk->bhij", q, k)
    age = np.arange(t)[:, None] - np.arange(t)
    weights = (1 + logits + logits**2 / 2) * jnp.where(age >= 0, gamma[:, None, None] ** np.maximum(age, 0), 0)
    since = gamma[:, None] ** (np.arange(t) + 1)
    until = gamma[:, None] ** (t - 1 - np.arange(t))
    phi_q = features(scale * q) * mosaic_gpu_layout.public_weights(q.shape[-1])
    num = jnp.einsum("bhij,bjhv->bihv", weights, v) + jnp.einsum("bihf,bhfv,hi->bihv", phi_q, s0, since)
    den = jnp.swapaxes(weights.sum(-1), 1, 2) + jnp.einsum("bihf,bhf,hi->bih", phi_q, z0, since)
    whole = gamma**t
    s = s0 * whole[:, None, None] + jnp.einsum("bjhf,bjhv,hj->bhfv", features(k), v, until)
    z = z0 * whole[:, None] + jnp.einsum("bjhf,hj->bhf", features(k), until)
    return num / den[..., None] if normalize else num, s, z


def check(
    t,
    *,
    b=1,
    h=1,
    kv=None,
    key_dim=16,
    value_dim=64,
    segments=1,
    state=True,
    decay=None,
    normalize=True,
    spread=1.0,
    scale=0.25,
    state_cotangent=0.02,
):
    rng = np.random.default_rng(t)
    kv = kv or h

    def bf16(*shape, by=1.0):
        return jnp.asarray(by * rng.standard_normal(shape), jnp.bfloat16)

    q, k = bf16(b, t, h, key_dim, by=spread), bf16(b, t, kv, key_dim, by=spread)
    v, dy = bf16(b, t, kv, value_dim), bf16(b, t, h, value_dim)
    # The state that 40 earlier tokens leave: any other could make the sum of weights vanish.
    past = np.asarray(features(rng.standard_normal((b, 40, h, key_dim))))
    s0 = np.einsum("bjhf,bjhv->bhfv", past, rng.standard_normal((b, 40, h, value_dim))).astype(np.float32)
    z0 = past.sum(1).astype(np.float32)
    if not state:
        s0, z0 = 0 * s0, 0 * z0
    ds, dz = ((state_cotangent * rng.standard_normal(x.shape)).astype(np.float32) for x in (s0, z0))
    gamma = None if decay is None else jnp.asarray(decay, jnp.float32)
    options = {
        "scale": scale,
        "normalize": normalize,
        "decay": gamma,
        "segments": segments,
        "interpret": plgpu.InterpretGPUParams(detect_races=True),
    }
    out = mosaic_gpu.forward(q, k, v, initial_state=(jnp.asarray(s0), jnp.asarray(z0)) if state else None, **options)
    jax.block_until_ready(out)
    assert not interpret_gpu.get_races().races_found
    cotangents = (jnp.asarray(ds), jnp.asarray(dz)) if state_cotangent else None
    grads = mosaic_gpu_vjp.backward(q, k, v, out.y, out.den, out.borders, dy, cotangents, **options)
    jax.block_until_ready(grads)
    assert not interpret_gpu.get_races().races_found
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        exact = [jnp.asarray(np.asarray(x, np.float64)) for x in (q, k, v, s0, z0)]
        gamma64 = jnp.ones(h) if decay is None else jnp.asarray(np.asarray(gamma, np.float64))
        truth, vjp = jax.vjp(lambda *x: reference(*x, gamma64, scale, normalize), *exact)
        true_grads = vjp(tuple(jnp.asarray(np.asarray(x, np.float64)) for x in (dy, ds, dz)))
    for name, x, true in zip("ysz", (out.y, out.s, out.z), truth, strict=True):
        assert relative_l2(x, true) < VALUE_BOUND, name
    for name, x, true in zip(("q", "k", "v", "s0", "z0"), grads, true_grads, strict=True):
        if np.any(true):  # without normalisation and cotangent of z, its gradient is exactly 0
            assert relative_l2(x, true) < GRADIENT_BOUND, name
        else:
            assert not np.any(x), name


@pytest.mark.parametrize("t", [65, *map(slow, [1, 63, 64, 127, 200, 512])])
def test_any_length_from_a_nonzero_state(t):
    """Kills: a tail that enters the state, a chunk carried one too late, a lost initial state."""
    check(t)


@pytest.mark.parametrize(("t", "segments"), [(200, 2), slow(512, 2), slow(500, 3)])
def test_segments_start_from_the_prefix(t, segments):
    """Kills: outputs past segment 0 from a zero state or a local count; a short last segment."""
    check(t, segments=segments)


@pytest.mark.parametrize(("t", "segments"), [(63, 1), slow(65, 1), slow(201, 2)])
def test_decay(t, segments):
    """Kills: decay of padded rows, of a short last chunk, between segments; overflow of gamma^-64."""
    check(t, h=2, segments=segments, decay=[0.97, 0.5])


@pytest.mark.slow
def test_heads_are_indexed_not_repeated():
    check(130, b=2, h=2, kv=1, segments=2)


@pytest.mark.slow
@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 32), (8, 96), (12, 112), (16, 128)])
def test_padded_and_tiled_dims(key_dim, value_dim):
    """Kills: the normaliser's gradient counted once per value tile; features of a padded key dim in the wrong
    slot."""
    check(70, h=2, kv=1, key_dim=key_dim, value_dim=value_dim, segments=2)


@pytest.mark.slow
def test_output_gradient_alone():
    """Kills what a large state cotangent would hide."""
    check(200, state=False, segments=2, state_cotangent=0.0)
    check(65, normalize=False, state_cotangent=0.0)


@pytest.mark.slow
def test_large_logits():
    """|s| up to 30: weights of 500 beside 1/2."""
    check(128, spread=2.5)


def test_state_layout_round_trip():
    rng = np.random.default_rng(0)
    for key_dim, value_dim in ((16, 64), (8, 96)):
        f = 1 + key_dim + key_dim * (key_dim + 1) // 2
        s, z = (jnp.asarray(rng.standard_normal(x), jnp.float32) for x in ((2, 3, f, value_dim), (2, 3, f)))
        s1, z1 = mosaic_gpu_layout.pack_state(s, z, key_dim)
        s2, z2 = mosaic_gpu_layout.unpack_state(s1, z1, z[..., 0], key_dim, value_dim)
        np.testing.assert_array_equal(s2, s)
        np.testing.assert_array_equal(z2, z)


@pytest.mark.parametrize(
    ("key_dim", "dtype", "rule"), [(24, jnp.bfloat16, "feature_dim=24"), (16, jnp.float32, "float32")]
)
def test_refuses_what_it_cannot_run(key_dim, dtype, rule):
    q, v = jnp.zeros((1, 64, 1, key_dim), dtype), jnp.zeros((1, 64, 1, 64), dtype)
    with pytest.raises(NotImplementedError, match=rf"mosaic_gpu: .*{rule}.*implementation='xla'"):
        mosaic_gpu.forward(q, q, v)
