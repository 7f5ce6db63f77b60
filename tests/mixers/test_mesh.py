"""Mixers on a mesh of eight devices: each device runs the kernel on its rows and heads, and nothing else changes."""

import functools
import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import (
    Attention,
    AttentionConfig,
    LandmarkCAT,
    LandmarkCATConfig,
    SlidingWindowAttention,
    SlidingWindowAttentionConfig,
    TaylorLinearAttention,
    TaylorLinearAttentionConfig,
)
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from tests.mixers.moved import quick_rngs
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, assert_close, full, needs_eight_devices, slow

pytestmark = needs_eight_devices
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "mixed": MeshConfig(data=2, fsdp=2, tensor=2),
}
HEADS = {"d_model": 64, "n_heads": 4, "head_dim": 16}
MIXERS = {
    "taylor": lambda **heads: TaylorLinearAttention(
        TaylorLinearAttentionConfig(**HEADS, **heads, feature_dim=8, decay=True), rngs=quick_rngs()
    ),
    "attention": lambda **heads: Attention(AttentionConfig(**HEADS, **heads), rngs=quick_rngs()),
    "landmark": lambda **heads: LandmarkCAT(LandmarkCATConfig(**HEADS, **heads, block_size=4), rngs=quick_rngs()),
    "window": lambda **heads: SlidingWindowAttention(
        SlidingWindowAttentionConfig(**HEADS, **heads, window=9), rngs=quick_rngs()
    ),
}


def tokens(b=8, t=21, seed=1):
    return jax.random.normal(jax.random.key(seed), (b, t, 64))


def outputs_and_gradients(mixer, x, dy):
    """Outputs of one call and of a prefill in two calls; gradients of parameters and inputs."""
    graph, params = nnx.split(mixer)

    def run(params, x):
        mixer = nnx.merge(graph, params)
        first, state = mixer.prefill(x[:, :7], mixer.init_state(x.shape[0], capacity=32))
        second, state = mixer.prefill(x[:, 7:], state)
        return mixer(x), (first, second, state)

    @jax.jit
    def both(params, x, dy):
        out, pull_back, streamed = jax.vjp(run, params, x, has_aux=True)
        return out, streamed, pull_back(dy)

    return both(params, x, dy)


@functools.cache
def on_one_device(mixer):
    found = outputs_and_gradients(MIXERS[mixer](), tokens(), tokens(seed=2))
    return jax.tree.map(np.asarray, found)


CASES = list(itertools.product(MIXERS, MESHES))
CORE = ("taylor", "mixed")
FULL = (("attention", "fsdp"),)


@pytest.mark.parametrize(
    ("mixer", "mesh"), [case if case == CORE else full(*case) if case in FULL else slow(*case) for case in CASES]
)
def test_a_mesh_changes_no_number(mixer, mesh):
    """Kills rows or heads that are mixed up, and gradients that are summed twice or in part."""
    with jax.set_mesh(make_mesh(MESHES[mesh])):
        found = outputs_and_gradients(MIXERS[mixer](), tokens(), tokens(seed=2))
    assert_close(found, on_one_device(mixer), 1e-5)


UNEVEN = {"rows": (3, {}), "heads": (8, {"n_kv_heads": 1}), "both": (5, {"n_kv_heads": 1})}


@pytest.mark.slow
@pytest.mark.parametrize("what", UNEVEN)
@pytest.mark.parametrize("mixer", MIXERS)
def test_what_the_mesh_does_not_divide(mixer, what):
    """Kills an error, or other numbers, where a batch of a generation does not fill the devices."""
    b, heads = UNEVEN[what]
    x, dy = tokens(b=b), tokens(b=b, seed=2)
    expected = outputs_and_gradients(MIXERS[mixer](**heads), x, dy)
    with jax.set_mesh(make_mesh(MESHES["mixed"])):
        found = outputs_and_gradients(MIXERS[mixer](**heads), x, dy)
    assert_close(found, jax.tree.map(np.asarray, expected), 1e-5)


KERNELS = (("taylor", "mixed", "tpu"), ("window", "fsdp", "cuda"))


@pytest.mark.parametrize(
    ("mixer", "mesh", "platform"),
    [
        full(*case) if case in KERNELS else slow(*case)
        for case in itertools.product(("attention", "taylor", "window"), MESHES, PLATFORMS)
    ],
)
def test_kernels_run_on_a_mesh(mixer, mesh, platform, monkeypatch):
    """Kills a mixer that leaves its kernel on a mesh, for the compiler cannot partition one."""
    monkeypatch.setenv("PALLAS_KERNELS", "all")
    graph, params = nnx.split(MIXERS[mixer]())
    dtype = jax.numpy.bfloat16
    params = jax.tree.map(lambda x: x.astype(dtype), params)

    def loss(params, x):
        return nnx.merge(graph, params)(x).astype(jax.numpy.float32).sum()

    with jax.set_mesh(make_mesh(MESHES[mesh])):
        traced = jax.jit(jax.grad(loss)).trace(params, tokens(t=128).astype(dtype))
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count(MARKERS[platform]) >= 2  # forward and backward
