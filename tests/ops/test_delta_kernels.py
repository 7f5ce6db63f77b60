"""The delta rule by kernels, whose XLA forms run here, against its recurrence token by token in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.delta_kernels import UNDECAYED, by_kernels, kernel_form
from jaxzoo.ops.delta_rule import CHUNK, delta_rule
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import certificates
from pallas_kernels.dispatch import lowering_for
from tests.ops.test_delta_rule import (
    LONG,
    assert_close,
    documents,
    extreme,
    problem,
    recurrence,
    single,
    with_gradients,
)
from tests.pallas_kernels.shared import needs_eight_devices, relative_l2, slow


def by_token(inputs, state, ids):
    decay = inputs.get("log_decay")
    decay = decay if decay is None or decay.ndim == 4 else decay[..., None]
    return by_kernels(inputs["q"], inputs["k"], inputs["v"], inputs["beta"], decay, ids, state)


def check(inputs, state, ids=None, tolerance=1e-5):
    """Values, last state and gradients, with random cotangents on both."""
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=inputs["v"].shape), rng.normal(size=state.shape)
    with jax.enable_x64(True):
        truth = jax.jit(lambda *args: with_gradients(functools.partial(recurrence, ids=ids), *args))
        values, gradients = jax.tree.map(np.asarray, truth(inputs, state, cotangents))
    call = functools.partial(by_token, ids=None if ids is None else jnp.asarray(ids))
    with lowering_for("cuda"):
        found = jax.jit(lambda *args: with_gradients(call, *args))(*single((inputs, state, cotangents)))
    assert_close(found[0], values, tolerance)
    assert_close(found[1], gradients, 10 * tolerance)


@pytest.mark.parametrize("decay", ["none", "token", slow("channel")])
def test_values_and_gradients_of_packed_documents(decay):
    """Kills: a wrong mask, sign, or decay to a border of a chunk; a leak across documents; padding that is written; a
    wrong gradient of the inverse; a state that either kernel does not see."""
    inputs, state = problem(LONG, "delta", decay)
    check(inputs, state, documents(LONG))


@pytest.mark.parametrize(("t", "decay"), [(1, "channel"), slow(CHUNK, "none"), slow(23, "token")])
def test_values_and_gradients_of_one_document(t, decay):
    """Kills: a token that replaces nothing of the initial state, a chunk cut wrongly."""
    check(*problem(t, "delta", decay, seed=3))


@pytest.mark.parametrize("kind", ["repeated", slow("decay"), slow("unnormalized")])
def test_extreme_inputs(kind):
    """Kills: an exponential of a positive sum, and an inverse of less than float32's digits."""
    check(*extreme(kind))


def wide(dtype=jnp.bfloat16, width=64, t=100):
    """q, k, v (2, t, 2, width) with keys of length 1; beta in [0, 1]; log decays of tokens, on average -0.15."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, t, 2, width)) for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, log_decay = rng.random((2, t, 2)), -0.3 * rng.random((2, t, 2))
    return (*(jnp.asarray(x, dtype) for x in (q, k, v)), jnp.float32(beta), jnp.float32(log_decay))


def run(q, k, v, beta, log_decay):
    return delta_rule(q, k, v, beta=beta, log_decay=log_decay)


def uses_kernels(function, *arrays, platform="cuda", setting="all") -> bool:
    with lowering_for(platform), certificates.using(setting):
        return "by_target" in str(jax.make_jaxpr(lambda *arrays: function(*arrays))(*arrays))


def test_who_takes_kernels():
    """Kills: kernels that are not verified, of a platform that has none, for float32, or widths that they do not serve;
    and a delta rule that misses them."""
    assert uses_kernels(run, *wide())
    assert not uses_kernels(run, *wide(), setting="none")
    assert not uses_kernels(run, *wide(), platform="cpu")
    assert not uses_kernels(run, *wide(jnp.float32))
    assert uses_kernels(run, *wide()[:4], jnp.zeros((2, 100, 2, 64), jnp.float32))
    assert uses_kernels(run, *wide(width=128)[:4], jnp.zeros((2, 100, 2, 128), jnp.float32))
    assert not uses_kernels(run, *wide(width=32))
    undecayed = functools.partial(run, log_decay=None)
    assert uses_kernels(undecayed, *wide()[:4])
    assert uses_kernels(undecayed, *wide(width=128)[:4])
    assert not uses_kernels(undecayed, *wide(width=128, t=UNDECAYED + 1)[:4])
    assert not uses_kernels(run, *wide(t=0))
    assert not uses_kernels(lambda q, *rest: run(q.astype(jnp.float32), *rest), *wide())


def test_bfloat16():
    """Kills: an inverse or states in bfloat16. Inputs, outputs and what lies between kernels are rounded, to 2^-9."""
    inputs = wide(t=300)
    names = ("q", "k", "v", "beta", "log_decay")
    with jax.enable_x64(True):
        exact = dict(zip(names, (np.asarray(x, np.float64) for x in inputs), strict=True))
        truth = functools.partial(recurrence, ids=None)
        expected = jax.tree.map(np.asarray, truth(exact, np.zeros((2, 2, 64, 64))))
    with lowering_for("cuda"), certificates.using("all"):
        found = jax.jit(run)(*inputs)
    assert (found[0].dtype, found[1].dtype) == (jnp.bfloat16, jnp.float32)
    assert max(relative_l2(x, y) for x, y in zip(found, expected, strict=True)) < 6e-3


def test_without_decay_gradients_do_not_lose_digits_with_length():
    """Kills: a rounded cotangent that is a sum over all later tokens, which the rest of the backward pass cancels: an
    error of 0.009 at this length, 0.022 at 8,192 tokens on a GPU."""
    inputs = tuple(x[:1] for x in wide(t=3000)[:4])
    dy = jnp.asarray(np.random.default_rng(3).normal(size=inputs[2].shape), jnp.bfloat16)

    def gradients(q, k, v, beta):
        y, pull_back = jax.vjp(lambda *x: delta_rule(*x[:3], beta=x[3])[0], q, k, v, beta)
        return pull_back(dy.astype(y.dtype))

    expected = jax.jit(gradients)(*(x.astype(jnp.float32) for x in inputs))
    with lowering_for("cuda"), certificates.using("all"):
        found = jax.jit(gradients)(*inputs)
    assert max(relative_l2(x, y) for x, y in zip(found, expected, strict=True)) < 6e-3  # beta k is rounded, too


@needs_eight_devices
@pytest.mark.parametrize("decay", ["token", slow("none")])
def test_batch_and_heads_on_four_devices(decay):
    """Kills: a share of heads or rows that reads another's keys, decays, documents or states."""
    rng = np.random.default_rng(2)
    inputs = wide()
    inputs = inputs if decay == "token" else inputs[:4]
    state = jnp.float32(rng.normal(size=(2, 2, 64, 64)))
    ids = jnp.asarray(np.stack([np.repeat([1, 2], [70, 30]), np.repeat([3, 4], [10, 90])]), jnp.int32)

    def both(state, q, k, v, beta, log_decay=None):
        return delta_rule(q, k, v, beta=beta, log_decay=log_decay, segment_ids=ids, initial_state=state)

    with lowering_for("cuda"), certificates.using("all"):
        expected = jax.tree.map(np.asarray, jax.jit(both)(state, *inputs))
        with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
            assert kernel_form(*inputs[:3], channel=False) not in (None, by_kernels)
            found = jax.jit(both)(state, *inputs)
        with jax.set_mesh(make_mesh(MeshConfig(data=8))):
            assert kernel_form(*inputs[:3], channel=False) is None
        with jax.set_mesh(make_mesh(MeshConfig(data=2, sequence=4))):
            assert kernel_form(*inputs[:3], channel=False) is None
    for x, y in zip(found, expected, strict=True):
        assert relative_l2(x, y) < 1e-6
