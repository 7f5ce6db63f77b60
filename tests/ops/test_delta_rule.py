"""`delta_rule` compared with its naive form in float64: values, states and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.delta_rule import (
    CHUNK,
    Removal,
    _after,
    _matmul_states,
    delta_rule,
    delta_rule_step,
    naive_delta_rule,
)
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import xla_chunks
from pallas_kernels.dispatch import lowering_for
from tests.ops.shared import assert_close, documents, in_float64, single, with_gradients
from tests.pallas_kernels.shared import full, needs_eight_devices, slow

B, H, K, V = 2, 3, 5, 4
LONG = 2 * CHUNK + 19
"""Two whole chunks and a part of one that pieces of 16 do not divide."""


def problem(t, form, decay, seed=0):
    """Inputs and a random state, in float64. Betas reach from 0 to 2; keys have length 1."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    inputs = {"q": normal(B, t, H, K), "k": unit(normal(B, t, H, K)), "v": normal(B, t, H, V)}
    if form == "delta":
        inputs["beta"] = 2 * rng.random((B, t, H))
    else:
        direction = unit(normal(B, t, H, K))
        inputs |= {"u": direction, "z": -direction * rng.random((B, t, H, K))}
    if decay != "none":
        inputs["log_decay"] = -0.3 * rng.random((B, t, H) if decay == "token" else (B, t, H, K))
    return inputs, normal(B, H, K, V)


def run(inputs, state, ids=None, rule=delta_rule, **options):
    fields = dict(inputs)
    if "u" in fields:
        fields["removal"] = Removal(fields.pop("u"), fields.pop("z"))
    q, k, v = (fields.pop(name) for name in "qkv")
    return rule(q, k, v, **fields, initial_state=state, segment_ids=ids, **options)


recurrence = functools.partial(run, rule=naive_delta_rule)


def check(inputs, state, ids=None, chunk_size=None, tolerance=1e-5, platform="cpu"):
    """Values, final state and gradients of one problem, with random cotangents on both, by the form of a platform."""
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=inputs["v"].shape), rng.normal(size=state.shape)
    truth = functools.partial(with_gradients, functools.partial(recurrence, ids=ids))
    values, gradients = in_float64(jax.jit(truth), (inputs, state), cotangents)
    ids = None if ids is None else jnp.asarray(ids)
    call = functools.partial(run, ids=ids, chunk_size=chunk_size)
    with lowering_for(platform):
        found = jax.jit(functools.partial(with_gradients, call))(*single(((inputs, state), cotangents)))
    assert_close(found[0], values, tolerance)
    assert_close(found[1], gradients, 10 * tolerance)


@pytest.mark.parametrize(
    ("form", "decay"),
    [
        full("delta", "token"),
        ("general", "channel"),
        *(slow(*form) for form in (("delta", "none"), ("delta", "channel"), ("general", "none"), ("general", "token"))),
    ],
)
def test_values_and_gradients_of_packed_documents(form, decay):
    """Kills: a wrong mask, chunk carry or decay in either; a read after instead of before the decay, or the reverse; a
    missing sign of the solve; a leak across documents, also at the border of a chunk; a state without gradient."""
    inputs, state = problem(LONG, form, decay)
    check(inputs, state, documents(LONG, CHUNK))


@pytest.mark.parametrize(
    ("form", "decay"),
    [
        ("delta", "channel"),
        slow("general", "token"),
        *(slow(*form) for form in (("delta", "none"), ("delta", "token"), ("general", "channel"), ("general", "none"))),
    ],
)
def test_values_and_gradients_of_one_document(form, decay):
    """Kills: an initial state that only the first chunk sees, a chunk that is no multiple of a piece."""
    inputs, state = problem(23, form, decay, seed=3)
    check(inputs, state, chunk_size=9)


@pytest.mark.parametrize(
    ("form", "decay", "at_once"),
    [
        ("delta", "token", 8),
        slow("general", "channel", 2),
        *(slow(*form, 8) for form in (("delta", "none"), ("delta", "channel"))),
        *(slow("general", decay, 8) for decay in ("none", "token", "channel")),
    ],
)
def test_many_chunks_at_once(form, decay, at_once, monkeypatch):
    """The form of GPUs. Kills: transitions in the wrong order, a state before the first chunk that later chunks
    do not see, a transition across the border of a document, groups of chunks that do not follow each other."""
    per_chunk = B * H * K * (K + V) * (2 if decay == "channel" else 1)
    monkeypatch.setattr(xla_chunks, "STATES_AT_ONCE", at_once * per_chunk)
    monkeypatch.setattr(xla_chunks, "GROUP", 2)
    inputs, state = problem(77, form, decay, seed=4)
    ids = np.stack([np.repeat([3, 1, 2], [1, 31, 45]), np.repeat([5, 4], [41, 36])]).astype(np.int32)
    check(inputs, state, ids, chunk_size=16, platform="cuda")


def extreme(kind):
    """Problems that break an implementation with positive exponents, differences of sums, or an explicit inverse."""
    t = 80
    inputs, state = problem(t, "delta", "channel")
    rng = np.random.default_rng(2)
    if kind == "decay":  # some forget all at once, the others nothing: e^-60 next to 1 - 1e-4
        forgets = rng.random((B, t, H, K)) < 0.3
        inputs["log_decay"] = np.where(forgets, -60.0, -1e-4 * rng.random((B, t, H, K)))
    elif kind == "repeated":  # the same three keys again and again, each replacement complete or a reflection
        keys = inputs["k"][:, :3]
        inputs["k"] = keys[:, rng.integers(0, 3, size=t)]
        inputs["beta"] = rng.choice([0.0, 1e-6, 1.0, 2.0 - 1e-6, 2.0], size=(B, t, H))
        del inputs["log_decay"]
    else:  # beta |k|^2 up to 6: reflections beyond, which the decay contains
        inputs["k"] = inputs["k"] * np.sqrt(6 * rng.random((B, t, H, 1)))
        inputs["beta"] = rng.random((B, t, H))
        inputs["log_decay"] = np.full((B, t, H), -1.0)
    return inputs, state


@pytest.mark.parametrize(
    ("kind", "platform"),
    [
        ("decay", "cpu"),
        slow("repeated", "cuda"),
        full("unnormalized", "cpu"),
        *(slow(*case) for case in (("repeated", "cpu"), ("decay", "cuda"), ("unnormalized", "cuda"))),
    ],
)
def test_extreme_inputs(kind, platform):
    """Kills: an exponential of a positive sum, sums whose difference rounds a decay of 1 away next to one of e^-60, an
    inverse instead of a substitution."""
    check(*extreme(kind), platform=platform)


@pytest.mark.parametrize("t", [0, 5, full(1), slow(CHUNK)])
@pytest.mark.parametrize(("form", "decay"), [("delta", "token"), ("general", "channel")])
def test_short_sequences_and_steps(t, form, decay):
    """Kills: padding that enters a state, a chunk that is always read, a step that differs from the sequence."""
    inputs, state = single(problem(t, form, decay))
    expected = recurrence(inputs, state, None) if t else (inputs["v"], state)

    @jax.jit
    def both(inputs, state):
        stepped, outputs = state, [inputs["v"][:, :0]]
        for i in range(t):
            now = {name: x[:, i] for name, x in inputs.items()}
            if "u" in now:
                now["removal"] = Removal(now.pop("u"), now.pop("z"))
            y_t, stepped = delta_rule_step(stepped, now.pop("q"), now.pop("k"), now.pop("v"), **now)
            outputs.append(y_t[:, None])
        return run(inputs, state), (jnp.concatenate(outputs, axis=1), stepped)

    for found in both(inputs, state):
        assert found[0].shape == (B, t, H, V)
        assert_close(found, expected, 1e-5)


def test_as_users_compile(default_compilation):
    """Kills a fusion that only optimized programs have (`linear_attention` records one), and sums or states in
    bfloat16: only inputs and outputs are rounded, to 2^-9 each."""
    inputs, state = problem(LONG, "delta", "token", seed=5)
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.bfloat16, 4e-3)):
        rounded = {name: jnp.asarray(x, dtype if name in "qkv" else jnp.float32) for name, x in inputs.items()}
        with jax.enable_x64(True):
            exact = {name: np.asarray(x, np.float64) for name, x in rounded.items()}
            expected, last = jax.tree.map(np.asarray, jax.jit(functools.partial(recurrence, ids=None))(exact, state))
        y, found = jax.jit(lambda inputs, state: run(inputs, state))(rounded, jnp.float32(state))
        assert (y.dtype, found.dtype) == (dtype, jnp.float32)
        assert np.linalg.norm(np.asarray(y, np.float64) - expected) < tolerance * np.linalg.norm(expected)
        assert np.linalg.norm(found - last) < tolerance * np.linalg.norm(last)


@pytest.mark.slow
def test_memory_of_a_long_sequence():
    """Kills: a backward pass that keeps a state, or the pieces of a chunk, for every token: at 16384 tokens of 4 heads
    of 16 inputs and gradients are 4 MiB each; states of all tokens would be 64 MiB."""
    t, h, k = 16384, 4, 16
    shape = jax.ShapeDtypeStruct((1, t, h, k), jnp.float32)
    beta = jax.ShapeDtypeStruct((1, t, h), jnp.float32)

    def loss(q, k, v, beta, log_decay):
        return delta_rule(q, k, v, beta=beta, log_decay=log_decay)[0].sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4))).lower(shape, shape, shape, beta, shape).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 12 * 2**20


def test_two_parts_of_a_sequence():
    """Kills transitions of parts in reverse order: the second part acts on what the first one has left."""
    first, then, before, own = np.random.default_rng(0).normal(size=(4, 2, 3, 5, 5)).astype(np.float32)
    assert_close(_matmul_states(first, then) @ before, then @ (first @ before), 1e-5)
    assert_close(_after(then, first, own), then @ first + own, 1e-5)


@needs_eight_devices
@pytest.mark.parametrize(
    ("form", "decay", "packed"),
    [
        full("delta", "token", True),
        slow("delta", "none", False),
        slow("general", "channel", True),
    ],
)
def test_parts_of_a_sequence_on_four_devices(form, decay, packed):
    """Kills: transitions of parts in the wrong order or transposed, a state before the first part that later parts do
    not see, a final state of another part, a document that a part drops or keeps wrongly."""
    inputs, state = single(problem(32, form, decay))
    ids = jnp.asarray(np.stack([np.repeat([1, 2, 3], [7, 1, 24]), np.repeat([4, 5], [16, 16])]), jnp.int32)
    call = functools.partial(run, ids=ids if packed else None, chunk_size=4)
    both = functools.partial(with_gradients, call)
    arguments = (inputs, state), jax.tree.map(jnp.cos, (inputs["v"], state))
    expected = jax.tree.map(np.asarray, jax.jit(both)(*arguments))
    with jax.set_mesh(make_mesh(MeshConfig(data=2, sequence=4))):
        found = jax.jit(both)(*arguments)
    assert_close(found, expected, 1e-5)


def test_one_form_must_be_named():
    """Kills a removal that is ignored, and a delta rule of strength nobody gave."""
    inputs, _ = single(problem(3, "general", "none"))
    q, k, v = (inputs[name] for name in "qkv")
    with pytest.raises(ValueError, match="exactly one of beta"):
        delta_rule(q, k, v)
