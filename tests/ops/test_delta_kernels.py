"""Delta rules by kernels, whose XLA forms run here, against the recurrence token by token in float64.

Kills: a leak across documents, padding that is written, a decay to the wrong border of a chunk, a state or
gradient that a kernel does not see; kernels that are taken without a certificate, or not taken with one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.delta_kernels import UNDECAYED, by_kernels, general_by_kernels, kernel_form
from jaxzoo.ops.delta_rule import CHUNK, Removal, delta_rule
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import certificates, triton_packages
from pallas_kernels.dispatch import lowering_for
from tests.ops.shared import assert_close, documents, in_float64, single, with_gradients
from tests.ops.test_delta_rule import LONG, extreme, problem, recurrence
from tests.pallas_kernels.shared import needs_eight_devices, relative_l2, slow

NAMES = {"delta": ("q", "k", "v", "beta", "log_decay"), "general": ("q", "k", "v", "u", "z", "log_decay")}
FORMS = pytest.mark.parametrize("form", NAMES)


def check(inputs, state, ids=None):
    """Values, last state and gradients, with random cotangents on both."""
    form = "delta" if "beta" in inputs else "general"
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=inputs["v"].shape), rng.normal(size=state.shape)

    def call(inputs, state):
        decay = inputs.get("log_decay")
        decay = decay if decay is None or decay.ndim == 4 else decay[..., None]
        run = by_kernels if form == "delta" else general_by_kernels
        return run(*(inputs[x] for x in NAMES[form][:-1]), decay, None if ids is None else jnp.asarray(ids), state)

    truth = functools.partial(with_gradients, functools.partial(recurrence, ids=ids))
    values, gradients = in_float64(jax.jit(truth), (inputs, state), cotangents)
    with lowering_for("cuda"):
        found = jax.jit(functools.partial(with_gradients, call))(*single(((inputs, state), cotangents)))
    assert_close(found[0], values, 1e-5)
    assert_close(found[1], gradients, 1e-4)


@pytest.mark.parametrize(
    ("t", "form", "decay", "packed"),
    [
        (LONG, "delta", "none", True),
        (LONG, "delta", "token", True),
        slow(LONG, "delta", "channel", True),
        (1, "delta", "channel", False),
        slow(CHUNK, "delta", "none", False),
        slow(23, "delta", "token", False),
        (LONG, "general", "channel", True),
        slow(1, "general", "channel", False),
        slow(CHUNK, "general", "none", False),
        slow(2 * CHUNK + 10, "general", "token", True),
    ],
)
def test_values_and_gradients(t, form, decay, packed):
    inputs, state = problem(t, form, decay, seed=t)
    check(inputs, state, documents(t, CHUNK) if packed else None)


@pytest.mark.parametrize("kind", ["repeated", slow("decay"), slow("unnormalized")])
def test_extreme_inputs(kind):
    """Kills an exponential of a positive sum, and an inverse of less than float32's digits."""
    check(*extreme(kind))


def wide(form, dtype=jnp.bfloat16, width=64, t=100):
    """Arrays (2, t, 2, width) in the order of `NAMES`: betas and decays of tokens, or removals, decays of channels."""
    rng = np.random.default_rng(0)
    q, k, v, u = (rng.normal(size=(2, t, 2, width)) for _ in range(4))
    k, u = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (k, u))
    if form == "delta":
        qkv, others = (q, k, v), (rng.random((2, t, 2)), -0.3 * rng.random((2, t, 2)))
    else:
        qkv, others = (q, k, v, u, -u * rng.random(u.shape)), (-0.3 * rng.random(u.shape),)
    return (*(jnp.asarray(x, dtype) for x in qkv), *map(jnp.float32, others))


def run(q, k, v, *rest, **options):
    """`delta_rule` of beta and decays, or of u, z and decays."""
    if rest[0].ndim == 3:
        return delta_rule(q, k, v, beta=rest[0], log_decay=rest[1] if rest[1:] else None, **options)
    return delta_rule(q, k, v, removal=Removal(*rest[:2]), log_decay=rest[2] if rest[2:] else None, **options)


def uses_kernels(*arrays, platform="cuda", setting="all", capability="9.0") -> bool:
    with lowering_for(platform, capability=capability), certificates.using(setting):
        return "by_target" in str(jax.make_jaxpr(lambda *arrays: run(*arrays))(*arrays))


@FORMS
def test_who_takes_kernels(form, monkeypatch):
    """Kills Hopper kernels that are not verified, for float32, or for widths that they do not serve."""
    monkeypatch.setattr(triton_packages, "missing", lambda: "not installed")
    arrays = wide(form)
    assert uses_kernels(*arrays)
    assert uses_kernels(*arrays[:-1])
    assert not uses_kernels(*arrays, setting="none")
    assert not uses_kernels(*arrays, platform="cpu")
    assert not uses_kernels(*wide(form, jnp.float32))
    assert not uses_kernels(*wide(form, width=32))
    assert not uses_kernels(*wide(form, t=0))
    assert not uses_kernels(arrays[0].astype(jnp.float32), *arrays[1:])
    if form == "delta":
        for width in (64, 128):
            q, k, v, beta, _ = wide(form, width=width)
            assert uses_kernels(q, k, v, beta)
            assert uses_kernels(q, k, v, beta, jnp.zeros(q.shape, jnp.float32))
        assert not uses_kernels(*wide(form, width=128, t=UNDECAYED + 1)[:-1])
        return
    for op in ("delta_chunks", "gated_linear_attention", "ut_transform"):
        monkeypatch.setattr(
            certificates, "objection", lambda _, asked, language, op=op: "not verified" if asked == op else None
        )
        assert not uses_kernels(*arrays)


def test_triton_kernels_take_the_whole_rule(monkeypatch):
    """Kills a rule that asks only for Hopper kernels, and Triton kernels for one of its three ops alone."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    for width in (64, 128):
        assert uses_kernels(*wide("delta", width=width), capability="8.0")
    assert not uses_kernels(*wide("delta", width=24), capability="8.0")
    assert not uses_kernels(*wide("general"), capability="8.0")


@FORMS
def test_bfloat16(form):
    """Kills an inverse or states in bfloat16. Inputs, outputs and what lies between kernels are rounded, to 2^-9."""
    inputs = wide(form, t=300)
    exact = dict(zip(NAMES[form], (np.asarray(x, np.float64) for x in inputs), strict=True))
    expected = in_float64(functools.partial(recurrence, ids=None), exact, np.zeros((2, 2, 64, 64)))
    with lowering_for("cuda"), certificates.using("all"):
        found = jax.jit(run)(*inputs)
    assert (found[0].dtype, found[1].dtype) == (jnp.bfloat16, jnp.float32)
    assert max(relative_l2(x, y) for x, y in zip(found, expected, strict=True)) < 6e-3


def test_without_decay_gradients_do_not_lose_digits_with_length():
    """Kills a rounded cotangent that is a sum over all later tokens, which the rest of the backward pass cancels: 0.015
    at this length, 0.022 at 8,192 tokens on a GPU."""
    inputs = tuple(x[:1] for x in wide("delta", t=3000)[:4])
    dy = jnp.asarray(np.random.default_rng(3).normal(size=inputs[2].shape), jnp.bfloat16)

    def gradients(*inputs):
        y, pull_back = jax.vjp(lambda *x: run(*x)[0], *inputs)
        return pull_back(dy.astype(y.dtype))

    expected = jax.jit(gradients)(*(x.astype(jnp.float32) for x in inputs))
    with lowering_for("cuda"), certificates.using("all"):
        found = jax.jit(gradients)(*inputs)
    assert max(relative_l2(x, y) for x, y in zip(found, expected, strict=True)) < 6e-3  # beta k is rounded, too


@needs_eight_devices
@pytest.mark.parametrize(("form", "n"), [("delta", 5), slow("delta", 4), ("general", 6)])
def test_batch_and_heads_on_four_devices(form, n):
    """Kills a share of heads or rows that reads another's keys, removals, decays, documents or states."""
    inputs, general = wide(form)[:n], form == "general"
    state = jnp.float32(np.random.default_rng(2).normal(size=(2, 2, 64, 64)))
    ids = jnp.asarray(np.stack([np.repeat([1, 2], [70, 30]), np.repeat([3, 4], [10, 90])]), jnp.int32)
    chosen = functools.partial(kernel_form, *inputs[:3], **({"general": True} if general else {"channel": False}))
    both = lambda state, *x: run(*x, segment_ids=ids, initial_state=state)  # noqa: E731
    with lowering_for("cuda"), certificates.using("all"):
        expected = jax.tree.map(np.asarray, jax.jit(both)(state, *inputs))
        with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
            assert chosen() not in (None, by_kernels, general_by_kernels)
            found = jax.jit(both)(state, *inputs)
        for mesh in (MeshConfig(data=8), MeshConfig(data=2, sequence=4)):
            with jax.set_mesh(make_mesh(mesh)):
                assert chosen() is None
    for x, y in zip(found, expected, strict=True):  # smaller matmuls may sum in another order: one output of bfloat16
        assert relative_l2(x, y) < 1e-4  # rounded to its neighbour is 2e-5 (Xeon with AMX); a mix-up is about 1
