"""The general delta rule by kernels, whose XLA forms run here, against its recurrence token by token in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.delta_kernels import general_by_kernels, kernel_form
from jaxzoo.ops.delta_rule import CHUNK, Removal, delta_rule
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import certificates
from pallas_kernels.dispatch import lowering_for
from tests.ops.test_delta_rule import (
    LONG,
    assert_close,
    documents,
    problem,
    recurrence,
    single,
    with_gradients,
)
from tests.pallas_kernels.shared import needs_eight_devices, relative_l2, slow

NAMES = ("q", "k", "v", "u", "z", "log_decay")


@pytest.mark.parametrize(
    ("t", "decay", "packed"),
    [
        (LONG, "channel", True),
        slow(1, "channel", False),
        slow(CHUNK, "none", False),
        slow(2 * CHUNK + 9, "token", True),
    ],
)
def test_values_and_gradients(t, decay, packed):
    """Kills: a leak across documents, by the decay or by a removal that reads the state before it; a decay of tokens or
    none that is not one of channels; padding that is written; a state that a kernel does not see."""
    inputs, state = problem(t, "general", decay, seed=t)
    ids = documents(t) if packed else None
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=inputs["v"].shape), rng.normal(size=state.shape)
    with jax.enable_x64(True):
        truth = jax.jit(lambda *args: with_gradients(functools.partial(recurrence, ids=ids), *args))
        values, gradients = jax.tree.map(np.asarray, truth(inputs, state, cotangents))

    def call(inputs, state):
        decays = inputs.get("log_decay")
        decays = decays if decays is None or decays.ndim == 4 else decays[..., None]
        return general_by_kernels(
            *(inputs[x] for x in NAMES[:5]), decays, None if ids is None else jnp.asarray(ids), state
        )

    with lowering_for("cuda"):
        found = jax.jit(lambda *args: with_gradients(call, *args))(*single((inputs, state, cotangents)))
    assert_close(found[0], values, 1e-5)
    assert_close(found[1], gradients, 1e-4)


def wide(dtype=jnp.bfloat16, width=64, t=100):
    """q, k, v, u and z (2, t, 2, width), as RWKV-7 has them, with u of length 1; log decays of channels."""
    rng = np.random.default_rng(0)
    q, k, v, u = (rng.normal(size=(2, t, 2, width)) for _ in range(4))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    z, log_decay = -u * rng.random(u.shape), -0.3 * rng.random(u.shape)
    return (*(jnp.asarray(x, dtype) for x in (q, k * width**-0.5, v, u, z)), jnp.float32(log_decay))


def run(q, k, v, u, z, log_decay=None, **options):
    return delta_rule(q, k, v, removal=Removal(u, z), log_decay=log_decay, **options)


def uses_kernels(function, *arrays, platform="cuda", setting="all") -> bool:
    with lowering_for(platform), certificates.using(setting):
        return "by_target" in str(jax.make_jaxpr(lambda *arrays: function(*arrays))(*arrays))


def test_who_takes_kernels(monkeypatch):
    """Kills: kernels that are not verified, of a platform that has none, for float32 or widths that they do not serve;
    and a delta rule that misses them."""
    assert uses_kernels(run, *wide())
    assert uses_kernels(lambda q, k, v, u, z, _: run(q, k, v, u, jnp.float32(z)), *wide())
    assert not uses_kernels(run, *wide(), setting="none")
    assert not uses_kernels(run, *wide(), platform="cpu")
    assert not uses_kernels(run, *wide(jnp.float32))
    assert not uses_kernels(run, *wide(width=32))
    assert not uses_kernels(run, *wide(t=0))
    assert not uses_kernels(lambda q, *rest: run(q.astype(jnp.float32), *rest), *wide())
    for op in ("delta_chunks", "gated_linear_attention", "ut_transform"):
        monkeypatch.setattr(certificates, "objection", lambda _, asked, op=op: "not verified" if asked == op else None)
        assert not uses_kernels(run, *wide())


def test_bfloat16():
    """Kills: an inverse or states in bfloat16. Inputs, outputs and what lies between stages are rounded, to 2^-9."""
    inputs = wide(t=300)
    with jax.enable_x64(True):
        exact = dict(zip(NAMES, (np.asarray(x, np.float64) for x in inputs), strict=True))
        truth = functools.partial(recurrence, ids=None)
        expected = jax.tree.map(np.asarray, truth(exact, np.zeros((2, 2, 64, 64))))
    with lowering_for("cuda"), certificates.using("all"):
        found = jax.jit(run)(*inputs)
    assert (found[0].dtype, found[1].dtype) == (jnp.bfloat16, jnp.float32)
    assert max(relative_l2(x, y) for x, y in zip(found, expected, strict=True)) < 5e-3


@needs_eight_devices
def test_batch_and_heads_on_four_devices():
    """Kills: a share of heads or rows that reads another's removals, decays, documents or states."""
    rng = np.random.default_rng(2)
    inputs, state = wide(), jnp.float32(rng.normal(size=(2, 2, 64, 64)))
    ids = jnp.asarray(np.stack([np.repeat([1, 2], [70, 30]), np.repeat([3, 4], [10, 90])]), jnp.int32)
    both = lambda state, *x: run(*x, segment_ids=ids, initial_state=state)  # noqa: E731
    with lowering_for("cuda"), certificates.using("all"):
        expected = jax.tree.map(np.asarray, jax.jit(both)(state, *inputs))
        with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
            assert kernel_form(*inputs[:3], general=True) not in (None, general_by_kernels)
            found = jax.jit(both)(state, *inputs)
        with jax.set_mesh(make_mesh(MeshConfig(data=8))):
            assert kernel_form(*inputs[:3], general=True) is None
        with jax.set_mesh(make_mesh(MeshConfig(data=2, sequence=4))):
            assert kernel_form(*inputs[:3], general=True) is None
    for x, y in zip(found, expected, strict=True):
        assert relative_l2(x, y) < 1e-6
