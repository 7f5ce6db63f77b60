"""The Hopper kernels of Taylor attention, run by Pallas' GPU interpreter, against the float64 reference.

Set NPROC=16 before Python starts: XLA's pool of threads must hold every blocking callback, or the interpreter
deadlocks. wgmma with its A operand in registers has no interpreter: those operands pass through shared memory
here. That path, and speed, need a device: `python -m
pallas_kernels.verify`.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention import (
    TaylorState,
    api,
    mosaic_gpu,
    mosaic_gpu_layout,
    mosaic_gpu_state,
    mosaic_gpu_vjp,
)
from pallas_kernels.taylor_attention.mosaic_gpu_layout import FORWARD, TRAINING, Segments, choose_segments, widths
from tests.pallas_kernels.shared import full, relative_l2
from tests.pallas_kernels.taylor_attention.cases import Call, rounded, truth

interpret_gpu = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call")
pytestmark = pytest.mark.skipif(int(os.environ.get("NPROC", "0")) < 16, reason="set NPROC=16: fewer threads deadlock")

# bf16 rounds by up to 2^-9 = 2e-3 (rms 1.1e-3). Outputs add, in quadrature, the roundings of P or ds, of the
# features, of the published state and of the result: four roundings, rms 2.3e-3 measured. Gradients of q and
# k add those of dnum and y.
VALUE_BOUND = 4e-3
GRADIENT_BOUND = 8e-3
# Two parts hold float32 to 2^-17 = 8e-6, and products leave out as much: rms 5e-6 measured.
FLOAT32_VALUE_BOUND = 1e-5
FLOAT32_GRADIENT_BOUND = 2e-5
HEAD = functools.partial(Call, h=1, g=1, k=16, v=64)


def cast(arrays, tokens, dtype=jnp.bfloat16):
    """The first `tokens` arrays in dtype, states in float32."""
    return [jnp.asarray(x, dtype if i < tokens else jnp.float32) for i, x in enumerate(arrays)]


def finished(x):
    """x, once it is there and no race was found on the way."""
    jax.block_until_ready(x)
    assert not interpret_gpu.get_races().races_found
    return x


def assert_within_bounds(outputs, gradients, expected, expected_gradients, bounds=(VALUE_BOUND, GRADIENT_BOUND)):
    for name, x, y in zip("ysz", outputs, expected, strict=True):
        assert relative_l2(x, y) < bounds[0], name
    for name, x, y in zip(("q", "k", "v", "s0", "z0"), gradients, expected_gradients, strict=False):
        assert relative_l2(x, y) < bounds[1], name


def check(call, *, segments=1, state_cotangent=0.02, dtype=jnp.bfloat16):
    arrays, cotangents = rounded(call, dtype, state_cotangent=state_cotangent)
    (q, k, v, *state), (dy, *dstate) = cast(arrays, 3, dtype), cast(cotangents, 1, dtype)
    options = {
        "scale": call.scale,
        "normalize": call.normalize,
        "decay": None if call.rates is None else jnp.asarray(call.rates),
        "segments": segments,
        "interpret": plgpu.InterpretGPUParams(detect_races=True),
    }
    forward = jax.jit(functools.partial(mosaic_gpu.forward, **options))
    backward = jax.jit(functools.partial(mosaic_gpu_vjp.backward, **options))
    out = finished(forward(q, k, v, initial_state=tuple(state) or None))
    dstate = tuple(dstate) if state_cotangent else None
    y = out.y if call.normalize else None
    gradients = finished(backward(q, k, v, y, out.den, out.borders, dy, dstate))
    bounds = (VALUE_BOUND, GRADIENT_BOUND) if dtype == jnp.bfloat16 else (FLOAT32_VALUE_BOUND, FLOAT32_GRADIENT_BOUND)
    assert_within_bounds((out.y, *out.state), gradients, *truth(call, arrays, cotangents), bounds)


SEVERAL = {"h": 2, "g": 2}
CASES = {
    "one token": (HEAD(t=1), {}),
    "one chunk": (HEAD(t=64), {}),
    "nine chunks": (HEAD(t=513), {}),
    "two segments, no state": (HEAD(t=130, state=False), {"segments": 2, "state_cotangent": 0.0}),
    "two segments": (HEAD(t=200), {"segments": 2}),
    "short last segment": (HEAD(t=500, state=False), {"segments": 3, "state_cotangent": 0.0}),
    "decay, short chunk": (HEAD(t=63, **SEVERAL, decay=True), {}),
    "decay, three segments": (HEAD(t=321, **SEVERAL, decay=True), {"segments": 3}),
    "20 key channels, two segments": (HEAD(t=200, k=20, v=32), {"segments": 2}),
    "30 key channels, more chunks than slots": (HEAD(t=330, k=30, v=32), {}),
    "24 key channels, grouped heads": (Call(t=130, h=2, g=1, k=24, v=40, decay=True), {"segments": 2}),
    "32 key channels, grouped heads": (Call(t=130, h=2, g=1, k=32, v=40, decay=True), {"segments": 2}),
    "batch and heads": (HEAD(t=70, b=3, h=3), {"segments": 2}),
    "8 and 96 channels": (Call(t=70, h=2, g=1, k=8, v=96, scale=0.25), {"segments": 2}),
    "12 and 112 channels": (Call(t=70, h=2, g=1, k=12, v=112, scale=0.25), {"segments": 2}),
    "negative scale": (HEAD(t=140, h=2, decay=True, scale=-0.5), {"segments": 2}),
    "scale of one": (HEAD(t=140, h=2, decay=True, scale=1.0), {}),
    "not normalised": (HEAD(t=65, normalize=False), {"state_cotangent": 0.0}),
    "scores of 30": (HEAD(t=128, size=2.5), {}),
    "float32, everything": (HEAD(t=66, k=12, v=40, decay=True), {"dtype": jnp.float32}),
    "float32, nine chunks": (HEAD(t=513), {"dtype": jnp.float32}),
    "float32, short last segment": (HEAD(t=500), {"segments": 3, "dtype": jnp.float32}),
    "float32, negative scale": (HEAD(t=140, h=2, scale=-0.3), {"segments": 2, "dtype": jnp.float32}),
    "float32, not normalised": (HEAD(t=130, normalize=False, decay=True), {"dtype": jnp.float32}),
    "float32, scores of 30": (HEAD(t=128, size=2.5), {"dtype": jnp.float32}),
    "float32, 128 values": (HEAD(t=200, v=128, state=False), {"segments": 2, "dtype": jnp.float32}),
}
"""Call and options of `check`, by name. Without a state its cotangent, which would hide the outputs', is 0."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    """Kills: a tail that enters the state, a slot of the ring that is filled while it is read, a segment that starts
    from the state of another, decay of padded rows, a piece of the features that is missing or in the buffer of
    another, a normaliser's gradient counted once per value tile, a scale taken twice, a part of float32 lost."""
    call, options = CASES[case]
    check(call, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("t", "pieces", "decay"), [(321, 2, True), (448, 4, True), (330, 3, False)])
def test_pieces_of_segments(t, pieces, decay, monkeypatch):
    """Kills: a short or an empty piece, powers of the other pieces, in either direction."""
    monkeypatch.setattr(mosaic_gpu_state, "choose_pieces", lambda blocks, chunks: pieces)
    check(HEAD(t=t, h=2, g=2, decay=decay), segments=2)


@pytest.mark.full
def test_the_package_runs_these_kernels():
    """Kills a wrong mask, carry, decay or tail, forward or backward; an adapter that mixes up arguments, or segments
    whose starts are not those of the forward pass: grouped heads, decay, states in and out, two segments, the second of
    which is two tokens of a chunk. Kills saved states of other shapes than other implementations fill with zeros."""
    call = HEAD(t=130, h=2, decay=True, eps=0.2)
    arrays, cotangents = rounded(call, jnp.bfloat16)
    (q, k, v, *state), (dy, *dstate) = cast(arrays, 3), cast(cotangents, 1)
    options = api.Options(
        scale=0.25,
        eps=call.eps,
        normalize=True,
        return_state=True,
        save_states=True,
        chunk_size=None,
        kernel_segments=2,
    )
    backend, tokens = api.BACKENDS["mosaic_gpu"], (q, k, v, TaylorState(*state), jnp.asarray(call.rates), None)
    static = {"options": options, "interpret": plgpu.InterpretGPUParams(detect_races=True)}
    forward, backward = (jax.jit(functools.partial(f, **static)) for f in (backend.forward, backend.backward))
    y, last, saved = finished(forward(*tokens))
    *gradients, dinitial = finished(backward(*tokens, y, saved, dy, TaylorState(*dstate)))
    of_xla = jax.eval_shape(lambda *x: api.OP.table("mosaic_gpu")["xla"].forward(*x, options=options), *tokens)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), (y, last, saved)) == jax.tree.map(
        lambda x: (x.shape, x.dtype), of_xla
    )
    assert_within_bounds((y, *last), (*gradients, *dinitial), *truth(call, arrays, cotangents))


@pytest.mark.parametrize(("dtype", "stateful"), [(jnp.bfloat16, True), full(jnp.float32, False)])
def test_xla_saves_as_much(dtype, stateful):
    """Kills saved states of another dtype's shapes, or of more segments than start from one: a program for several
    platforms could not join them."""
    q, k, v, *state = cast(HEAD(t=200, h=2, v=40).arrays(), 3, dtype)
    options = api.Options(
        scale=0.25, eps=0.0, normalize=True, return_state=True, save_states=True, chunk_size=None, kernel_segments=2
    )
    tokens = (q, k, v, TaylorState(*state) if stateful else None, None, None)
    kernel, xla = (
        jax.eval_shape(lambda *x, name=name: api.OP.table("mosaic_gpu")[name].forward(*x, options=options), *tokens)
        for name in ("mosaic_gpu", "xla")
    )
    assert jax.tree.structure(kernel) == jax.tree.structure(xla)
    assert jax.tree.leaves(kernel) == jax.tree.leaves(xla)


def test_segments_that_pay():
    """Kills a split of short sequences, whose launches cost more than it saves, one for which there are no cores, and
    segments of no chunk."""
    for blocks, t, forward, training in (
        (64, 1024, 1, 1), (64, 2048, 1, 2), (64, 8192, 2, 2), (16, 1024, 1, 8), (128, 32768, 1, 1), (1, 1, 1, 1),
    ):  # fmt: skip
        assert choose_segments(blocks, t, FORWARD) == forward
        assert choose_segments(blocks, t, TRAINING) == training
    for length in (1, 63, 64, 65, 128, 700):
        assert Segments(length, choose_segments(1, length, TRAINING)).count <= max(1, -(-length // 128))


@pytest.mark.parametrize(
    ("key_dim", "value_dim", "dtype"),
    [
        (16, 64, jnp.bfloat16),
        *(full(*x, jnp.bfloat16) for x in ((8, 96), (24, 64), (32, 40))),
        full(12, 40, jnp.float32),
    ],
)
def test_state_layout_round_trip(key_dim, value_dim, dtype):
    """Kills a row or column of the kernel's state that is lost, or read from where it was not written."""
    rng, sizes = np.random.default_rng(0), widths(key_dim, dtype)
    f = 1 + key_dim + key_dim * (key_dim + 1) // 2
    state = [np.float32(rng.standard_normal(x)) for x in ((2, 3, f, value_dim), (2, 3, f))]

    @jax.jit
    def there_and_back(s, z):
        packed = mosaic_gpu_layout.pack_state(s, z, key_dim, sizes)
        return mosaic_gpu_layout.unpack_state(*packed, z[..., 0], key_dim, value_dim, sizes)

    jax.tree.map(np.testing.assert_array_equal, list(there_and_back(*state)), state)
