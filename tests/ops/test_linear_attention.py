"""`linear_attention` compared with its naive form in float64: values, states and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.head_norm import head_norm
from jaxzoo.ops.linear_attention import (
    CHUNK,
    PIECE,
    LinearState,
    linear_attention,
    linear_attention_step,
    naive_linear_attention,
)
from pallas_kernels import certificates, xla_chunks
from pallas_kernels.dispatch import lowering_for
from tests.ops.shared import assert_close, documents, in_float64, with_gradients
from tests.pallas_kernels.shared import full, lowered, slow

B, H, K, V = 2, 3, 5, 4
DECAYS = {"none": None, "head": (H,), "token": (B, 0, H), "channel": (B, 0, H, K)}
LONG = 2 * CHUNK + PIECE + 3


def problem(t, decay, seed=0, scale=1.0):
    """Positive features, values, log decays and a random state, in float64."""
    rng = np.random.default_rng(seed)
    q, k = (np.abs(rng.normal(size=(B, t, H, K))) for _ in range(2))
    shape = DECAYS[decay]
    shape = shape and tuple(n or t for n in shape)
    log_decay = None if shape is None else -scale * rng.random(shape)
    state = tuple(np.abs(rng.normal(size=(B, H, K, *rest))) for rest in ((V,), ()))
    return (q, k, rng.normal(size=(B, t, H, V)), log_decay), state


def truth(inputs, state, ids, *, normalize):
    """The naive form."""
    *qkv, log_decay = inputs
    options = {"log_decay": log_decay, "normalize": normalize, "eps": 0.1}
    return naive_linear_attention(*qkv, **options, segment_ids=ids, initial_state=LinearState(*state))


def run(inputs, state, ids, *, normalize, dtype=jnp.float32):
    q, k, v, log_decay = inputs
    state = LinearState(state[0], state[1] if normalize else None)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    y, state = linear_attention(
        q, k, v, log_decay=log_decay, normalize=normalize, eps=0.1, segment_ids=ids, initial_state=state
    )
    return y, tuple(state)


def distinct_products(x):
    """Features whose scalar products are squares."""
    return (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize(
    ("t", "decay", "packed", "at_once"),
    [
        (130, "none", True, 1),
        slow(LONG, "token", False, 1),
        slow(LONG, "channel", True, 1),
        (LONG, "channel", True, 3),
        slow(130, "none", True, 2),
        full(130, "head", False, 1),
        full(LONG, "token", False, 2),
        *(slow(130, decay, decay == "head", 1) for decay in ("none", "head")),
        *(slow(LONG, decay, decay == "token", 1) for decay in ("token", "channel")),
    ],
)
def test_values_and_gradients(t, decay, packed, at_once, monkeypatch):
    """Kills: a wrong mask, chunk carry or decay in either; a decay that acts after the token is written; a leak across
    a document, at a border of a chunk too; a state without gradient. at_once: chunks in the form for accelerators."""
    monkeypatch.setattr(xla_chunks, "STATES_AT_ONCE", at_once * B * H * K * V)
    normalize = decay in ("none", "token")
    inputs, state = problem(t, decay)
    ids = documents(t, CHUNK) if packed else None
    rng = np.random.default_rng(1)
    dy, dstate = rng.normal(size=(B, t, H, V)), tuple(rng.normal(size=x.shape) for x in state)
    if not normalize:
        dstate = dstate[0], np.zeros_like(dstate[1])
    call = jax.jit(functools.partial(truth, ids=ids, normalize=normalize))
    expected = in_float64(with_gradients, call, (inputs, state), (dy, LinearState(*dstate)))
    single = jax.tree.map(jnp.float32, (inputs, state, dy, dstate))
    ids = None if ids is None else jnp.asarray(ids)
    call = jax.jit(functools.partial(run, ids=ids, normalize=normalize))
    dstate = single[3] if normalize else (single[3][0], None)
    with lowering_for("cpu" if at_once == 1 else "cuda"):
        (y, last), gradients = with_gradients(call, single[:2], (single[2], dstate))
    assert_close(y, expected[0][0], 1e-5)
    assert_close(last[0], expected[0][1][0], 1e-5)
    assert_close(gradients[0], expected[1][0], 1e-4)
    assert_close(gradients[1][0], expected[1][1][0], 1e-4)
    if normalize:
        assert_close((last[1], gradients[1][1]), (expected[0][1][1], expected[1][1][1]), 1e-4)


def test_short_sequences_and_steps():
    """Kills: padding that enters a state, a chunk that is always read, a step that differs from the sequence."""
    lengths = (0, 1, PIECE, CHUNK - 1, CHUNK)
    inputs, state = jax.tree.map(np.float32, problem(CHUNK, "channel"))

    @jax.jit
    def both(inputs, state):
        def step(state, now):
            q, k, v, log_decay = now
            y, state = linear_attention_step(state, q, k, v, log_decay=log_decay, normalize=True, eps=0.1)
            return state, (state, y)

        first = LinearState(*state)
        stepped = jax.lax.scan(step, first, jax.tree.map(lambda x: x.swapaxes(0, 1), inputs))[1]
        return stepped, {t: run(tuple(x[:, :t] for x in inputs), state, None, normalize=True) for t in lengths}

    (states, outputs), found = both(inputs, state)
    for t in lengths:
        y, last = found[t]
        assert y.shape == (B, t, H, V)
        assert_close(y, np.asarray(outputs).swapaxes(0, 1)[:, :t], 1e-5)
        assert_close(last, tuple(np.asarray(x)[t - 1] for x in states) if t else state, 1e-5)


@pytest.mark.parametrize("scale", [slow(1e-4), full(60.0)])
def test_extreme_decays(scale):
    """Kills: an exponential of a positive sum (inf), and sums whose difference rounds a decay of 1 away beside one of
    e^-60: the decays of every third token are scaled, the others are near 1."""
    (q, k, v, log_decay), state = problem(150, "channel")
    log_decay = np.where(np.arange(150)[None, :, None, None] % 3 == 0, scale, 1e-3) * log_decay
    inputs = (q, k, v, log_decay)
    expected = in_float64(jax.jit(functools.partial(truth, ids=None, normalize=True)), inputs, state)
    single = jax.tree.map(np.float32, (inputs, state))

    def loss(inputs, state):
        out = run(inputs, state, None, normalize=True)
        return out[0].sum(), out

    gradient, found = jax.jit(jax.grad(loss, has_aux=True))(*single)
    assert_close(found, expected, 1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_bfloat16():
    """Kills: sums and states in bfloat16. Only the inputs and the output are rounded, to 2^-9 each."""
    inputs, state = problem(300, "token", scale=0.1)
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in inputs[:3]]
    expected, _ = in_float64(jax.jit(functools.partial(truth, ids=None, normalize=True)), (*rounded, inputs[3]), state)
    call = jax.jit(functools.partial(run, ids=None, normalize=True, dtype=jnp.bfloat16))
    y, last = call(*jax.tree.map(np.float32, (inputs, state)))
    assert (y.dtype, last[0].dtype) == (jnp.bfloat16, jnp.float32)
    assert np.linalg.norm(np.asarray(y, np.float64) - expected) < 4e-3 * np.linalg.norm(expected)


def test_padding_divides_nothing_by_nothing():
    """Kills 0 / 0 of the padded tokens, whose gradients are NaN: eps = 0, which configs allow, and t of no whole chunk;
    features that are 0 for one token have an output and gradients of 0."""
    (q, k, v, _), _ = jax.tree.map(np.float32, problem(PIECE + 1, "none"))
    q[:, 3] = 0
    y, pull_back = jax.vjp(jax.jit(lambda *qkv: linear_attention(*qkv, normalize=True, eps=0.0)[0]), q, k, v)
    with jax.enable_x64(True):
        weights = np.tril(np.einsum("bihk,bjhk->bhij", *(np.float64(x) for x in (q, k))))
        weights /= np.where(weights.any(-1, keepdims=True), weights.sum(-1, keepdims=True), 1)
        assert_close(y, np.einsum("bhij,bjhv->bihv", weights, np.float64(v)), 1e-5)
    assert all(np.isfinite(x).all() for x in pull_back(np.ones_like(y)))


def test_weights_that_are_squares():
    """Kills weights by products of features, which round a weight of 1e-8 to anything near 0, below it too: dot
    products of 1e-4 of vectors of length 3, with a decay and without, over two chunks the first of which weighs 0."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 40, 1, n)) for n in (8, 8, 3))
    q[:] = q[:, :1]
    q[:, :20] = k[:, :20] = 0  # a whole chunk whose state adds nothing
    k -= np.einsum("btk,bk->bt", k[:, :, 0], q[:, -1, 0])[:, :, None, None] * q[:, -1:] / np.square(q[:, -1]).sum()
    k[:, 20:] += 1e-5 * rng.uniform(1, 4, size=(1, 20, 1, 1)) * q[:, 20:]
    q, k, v = (np.float32(x) for x in (q, k, v))
    for log_decay in (None, np.float32([-0.1])):
        weights = np.tril(np.square(np.einsum("bihk,bjhk->bhij", *(np.float64(x) for x in (q, k)))))
        weights *= np.exp(0 if log_decay is None else -0.1 * np.subtract.outer(np.arange(40), np.arange(40)))
        total = np.where(weights.any(-1, keepdims=True), weights.sum(-1, keepdims=True), 1)
        call = functools.partial(linear_attention, log_decay=log_decay, normalize=True, eps=0.0, chunk_size=20)
        y, _ = jax.jit(lambda q, k, v, call=call: call(*map(distinct_products, (q, k)), v, squares=(q, k)))(q, k, v)
        np.testing.assert_allclose(y[:, 20:], np.einsum("bhij,bjhv->bihv", weights / total, v)[:, 20:], atol=0.05)


@pytest.mark.slow
def test_memory_of_a_long_sequence():
    """Kills: a (t, t) matrix, and a backward pass that keeps a state, or the pieces of a chunk, for every token: at
    16384 tokens of width 16 inputs and gradients are 4 MiB each, states would be 16 MiB a head."""
    q, k, v, log_decay = (jax.ShapeDtypeStruct((1, 16384, 4, 16), jnp.float32) for _ in range(4))

    def loss(q, k, v, log_decay):
        return linear_attention(q, k, v, log_decay=log_decay)[0].sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(q, k, v, log_decay).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 32 * 2**20


def test_a_norm_after_a_single_chunk(default_compilation):
    """Kills: a fusion of the norm with the matmuls of the only chunk, which gives other numbers, or NaN, at this
    size."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(64, 64, 1, 64)), jnp.float32) for _ in range(3))
    y = np.asarray(jax.jit(lambda *qkv: linear_attention(*qkv)[0])(q, k, v), np.float64)
    scaled = jax.jit(lambda *qkv: head_norm(linear_attention(*qkv)[0], "rms", eps=1e-5))(q, k, v)
    np.testing.assert_allclose(scaled, y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-5), atol=1e-4)


@pytest.mark.full
def test_rows_of_a_large_batch_are_those_of_a_small_one(default_compilation):
    """Kills: a fusion of the quotient with the matmuls of the only chunk, which gives other numbers, or NaN, at these
    sizes."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(512, 32, 1, 32)), jnp.float32) for _ in range(3))
    answer = jax.jit(lambda q, k, v: linear_attention(jnp.exp(q), jnp.exp(k), v, normalize=True)[0])
    q, k, v = (np.asarray(x) for x in (q, k, v))
    small = np.concatenate([answer(q[i : i + 32], k[i : i + 32], v[i : i + 32]) for i in range(0, 512, 32)])
    for b in (128, 250, 512):
        np.testing.assert_allclose(answer(q[:b], k[:b], v[:b]), small[:b], atol=1e-5)


def test_kernels_serve_what_they_know():
    """Kills: a mixer that misses its verified kernel, or takes one that knows no normalizer or square; heads of q and k
    that are repeated before it; decays per channel on a GPU that miss its kernels."""

    def program(q_heads: int, decay: tuple[int, ...] | None, *, platform: str = "tpu", **options) -> str:
        shapes = ((q_heads, 64), (2, 64), decay or (2,))
        q, v, log_decay = (jax.ShapeDtypeStruct((1, 128, *x), jnp.bfloat16) for x in shapes)

        def run(q, v, log_decay):
            squares = (q, q) if options.get("squares") else None
            return linear_attention(
                q, q, v, log_decay=log_decay if decay else None, squares=squares, normalize="normalize" in options
            )[0]

        with lowering_for(platform), certificates.using("all"):
            return lowered(run, (q, v, log_decay), platform)

    def operands(text: str) -> str:
        return next(line for line in text.splitlines() if "tpu_custom_call" in line).rpartition(" : ")[2]

    assert operands(program(1, (2,))).startswith(
        "(tensor<1x128x64xbf16>, tensor<1x128x64xbf16>, tensor<1x128x128xbf16>"
    )
    assert operands(program(2, (2, 64))).startswith("(" + 3 * "tensor<1x128x128xbf16>, " + "tensor<1x128x128xf32>")
    assert "tpu_custom_call" in program(2, None)
    assert "tpu_custom_call" not in program(1, (2,), normalize=True)
    assert "tpu_custom_call" not in program(2, None, squares=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxzoo.ops.linear_attention.gated_linear_attention", None)
        with pytest.raises(TypeError, match="NoneType"):
            program(2, (2, 64), platform="cuda")
