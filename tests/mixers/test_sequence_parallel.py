"""Mixers whose sequences are shared out over devices: the numbers of one device, and little said between devices."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.tree_util import Partial

from jaxzoo.mixers import (
    AttentionConfig,
    Context,
    GatedShortConvConfig,
    MambaConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.ops.linear_attention import LinearState, linear_attention
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.parallel.sharding import MeshConfig, constrain, make_mesh, named_sharding
from jaxzoo.testing.mixer_inputs import build
from tests.mixers.cases import CASES
from tests.mixers.moved import quick_rngs
from tests.pallas_kernels.shared import assert_close, needs_eight_devices

pytestmark = needs_eight_devices
LENGTH = 32
HASTY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Programs that run once: their compiler takes longer than they do."""
MESHES = {
    "sequence": MeshConfig(data=2, sequence=4),
    "mixed": MeshConfig(data=2, sequence=2, tensor=2),
    "fsdp": MeshConfig(data=1, fsdp=2, sequence=4),
    "alone": MeshConfig(data=1, sequence=8),
}
CLAIMED = [name for name, config in CASES.items() if config.capabilities.sequence_parallel]
CORE = [
    ("RWKV5TimeMix-tiny", "sequence", True),
    ("BlockedWindowAttention-n_heads=2,block_size=4", "sequence", True),  # the only blocks that divide the parts
]
FULL = [
    ("Hyena-tiny", "mixed", False),  # neither channels nor taps divide
]
SLOW = [
    (name, mesh, packed)
    for name in CLAIMED
    for packed in (False, True)
    for mesh in MESHES
    if (CASES[name].capabilities.segments or not packed) and (name, mesh, packed) not in (*CORE, *FULL)
]


def inputs(width, seed, b=4):
    return np.random.default_rng(seed).normal(size=(b, LENGTH, width)).astype(np.float32)


def documents(b=4):
    """Runs of a few tokens and of many; the first row is one document."""
    begins = np.random.default_rng(0).random((b, LENGTH)) < np.array([0.0, 0.05, 0.1, 0.3])[:, None]
    return jnp.asarray(np.cumsum(begins, axis=1), jnp.int32)


def outputs_and_gradients(mixer, x, dy, context):
    graph, params, others = nnx.split(mixer, nnx.Param, ...)

    def run(params, x):
        return nnx.merge(graph, params, others)(constrain(x, "batch", "time", None), context)

    def both(params, x, dy):
        y, pull_back = jax.vjp(run, params, x)
        return y, pull_back(constrain(dy, "batch", "time", None))

    return jax.tree.map(np.asarray, jax.jit(both, compiler_options=HASTY)(params, x, dy))


def arguments(name, packed):
    config = CASES[name]
    tokens = jnp.asarray(np.random.default_rng(3).integers(7, size=(4, LENGTH), dtype=np.int32))
    x, values = inputs(config.width, 1), jnp.asarray(inputs(config.width, 5))
    context = Context(tokens=tokens, segment_ids=documents() if packed else None, first_values=values)
    return build(config), x, inputs(config.width, 2), context


@functools.cache
def on_one_device(name, packed):
    return outputs_and_gradients(*arguments(name, packed))


@pytest.mark.parametrize(
    ("name", "mesh", "packed"),
    [
        *CORE,
        *(pytest.param(*case, marks=pytest.mark.full) for case in FULL),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_parts_of_a_sequence_give_the_numbers_of_the_whole(name, mesh, packed):
    """Kills: a state or a halo of the wrong part, a first token that resets every part or none, documents that
    leak over the border of two parts, gradients that do not come back over it or are summed twice."""
    expected = on_one_device(name, packed)
    with jax.set_mesh(make_mesh(MESHES[mesh])):
        found = outputs_and_gradients(*arguments(name, packed))
    assert_close(found, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 9, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 8, 31, 40))])
def test_a_halo_over_several_parts(size):
    """Kills: a halo that ends at the neighbour, parts in the wrong order, a history that only the first part gets."""
    x, old = jnp.arange(1.0, 33.0).reshape(1, 32, 1), -jnp.arange(1.0, size + 1).reshape(1, size, 1)

    def sums(weights, extended, ids):
        """Weighted sums over the halo and the token."""
        taken = [extended[:, i : i + extended.shape[1] - size] * weights[i] for i in range(size + 1)]
        return sum(taken[1:], taken[0])

    weights = jnp.exp2(jnp.arange(size + 1, dtype=jnp.float32) % 5)
    whole = np.concatenate([old, x], axis=1)[0, :, 0]
    expected = np.array([np.sum(whole[i : i + size + 1] * weights) for i in range(32)])
    with jax.set_mesh(make_mesh(MESHES["sequence"])):
        found = jax.jit(lambda x, old, w: apply_with_halo(Partial(sums, w), size, x, old=old))(x, old, weights)
    np.testing.assert_array_equal(found[0, :, 0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8)), 4])
def test_states_before_and_after_the_parts(sequence):
    """Kills a state before the first token that later parts do not see, and a final state that is of another part."""
    keys = jax.random.split(jax.random.key(0), 6)
    q, k, v = (jax.random.uniform(key, (8 // sequence, 16, 3, 5)) for key in keys[:3])
    log_decay = -jax.random.uniform(keys[3], (8 // sequence, 16, 3, 5))
    rows = 8 // sequence
    state = LinearState(jax.random.uniform(keys[4], (rows, 3, 5, 5)), jax.random.uniform(keys[5], (rows, 3, 5)))

    def run(q, k, v, log_decay, state):
        return linear_attention(q, k, v, log_decay=log_decay, normalize=True, initial_state=state)

    def both(*arguments):
        result, pull_back = jax.vjp(run, *arguments)
        return result, pull_back(jax.tree.map(jnp.cos, result))

    expected = jax.tree.map(np.asarray, jax.jit(both, compiler_options=HASTY)(q, k, v, log_decay, state))
    with jax.set_mesh(make_mesh(MeshConfig(data=-1, sequence=sequence))):
        found = jax.jit(both, compiler_options=HASTY)(q, k, v, log_decay, state)
    assert_close(found, expected, 1e-5)


COLLECTIVE = re.compile(r"= (.*?) (?:all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


def collective_sizes(config, length, b=2):
    """Numbers in each array that a device receives in forward and backward pass of a mixer, of 4 parts of sequences."""
    mesh = make_mesh(MeshConfig(data=2, sequence=4))
    graph, params, others = nnx.split(config.build(rngs=quick_rngs()), nnx.Param, ...)
    x = jax.ShapeDtypeStruct((b, length, config.width), jnp.float32)
    placed = named_sharding(x.shape, ("batch", "time", None), mesh)

    def run(params, x, dy):
        y, pull_back = jax.vjp(lambda *inputs: nnx.merge(graph, inputs[0], others)(inputs[1]), params, x)
        return y, pull_back(dy)

    with jax.set_mesh(mesh):
        jitted = jax.jit(run, in_shardings=(None, placed, placed), out_shardings=(placed, (None, placed)))
        text = jitted.lower(params, x, x).compile(HASTY).as_text()
    arrays = [array for result in COLLECTIVE.findall(text) for array in re.findall(r"\w+\[([\d,]*)\]", result)]
    return [math.prod(int(n) for n in array.split(",") if n) for array in arrays]


SAID = {
    "taylor": TaylorLinearAttentionConfig(d_model=32, n_heads=2, feature_dim=4),
    "mamba": MambaConfig(d_model=16, d_state=4),
    "window": SlidingWindowAttentionConfig(d_model=32, n_heads=2, window=9),
    "short_conv": GatedShortConvConfig(d_model=16),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "window",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("taylor", "mamba", "short_conv")),
    ],
)
def test_what_devices_say_does_not_grow_with_the_sequence(name):
    """Kills activations that are gathered, or exchanged in parts, where a state or a halo is enough."""
    sizes = {length: collective_sizes(SAID[name], length) for length in (1024, 2048)}
    assert sizes[1024], "no collectives were found in the program"
    assert sum(sizes[2048]) == sum(sizes[1024])
    activations = 1024 // 4 * SAID[name].width  # of a device: one row, a fourth of its tokens
    assert max(sizes[1024]) < activations


@pytest.mark.slow
def test_attention_gathers_keys_and_values_alone():
    """Kills queries, scores or outputs that travel, and a test above that does not see what does."""
    config = AttentionConfig(d_model=32, n_heads=4, n_kv_heads=1, head_dim=8)
    short, long = (sum(collective_sizes(config, length)) for length in (256, 512))
    per_token = (long - short) / 256  # of keys and values, 3 of 4 parts in, and their gradients out
    assert per_token == 2 * 2 * 8 * 3 / 4
