"""`xla_chunks`: states before chunks against a loop, and how many tokens a GPU takes at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from pallas_kernels import xla_chunks
from pallas_kernels.dispatch import lowering_for
from tests.pallas_kernels.shared import needs_eight_devices


@pytest.mark.parametrize("reverse", [False, True])
def test_states_before(reverse):
    """Kills: a row that reads another's chunks, a factor of the wrong chunk, an end that is not the last chunk's."""
    rng = np.random.default_rng(0)
    state, own, kept = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3, 4), (10, 3, 4), (10, 1)))
    before, last = xla_chunks.states_before({"s": state}, {"s": own}, kept, reverse=reverse)
    for row in range(2):
        carry = state[row]
        for chunk in range(5 * row, 5 * row + 5)[:: -1 if reverse else 1]:
            np.testing.assert_allclose(before["s"][chunk], carry, rtol=1e-5, atol=1e-6)
            carry = kept[chunk] * carry + own[chunk]
        np.testing.assert_allclose(last["s"][row], carry, rtol=1e-5, atol=1e-6)


def test_states_before_affine():
    """Kills: groups that are joined with too few, or the wrong ones, of those before; a chunk that is missing of the
    last group and has an effect; a gradient of any input that is lost or transposed. 23 chunks are six groups."""
    rng = np.random.default_rng(0)
    shapes = (2, 23, 1, 2), (2, 23, 1, 2, 2), (2, 23, 1, 2, 3), (2, 1, 2, 3)
    inputs = [rng.uniform(-0.6, 0.6, size=shape) for shape in shapes]
    cotangents = [rng.normal(size=shape) for shape in shapes[2:]]

    def one_by_one(kept, change, own, state):
        def chunk(state, now):
            kept, change, own = now
            return kept[..., None] * state + change @ state + own, state

        last, before = jax.lax.scan(chunk, state, tuple(x.swapaxes(0, 1) for x in (kept, change, own)))
        return before.swapaxes(0, 1), last

    def values_and_gradients(function, dtype):
        @jax.jit
        def run(inputs, cotangents):
            found, pull_back = jax.vjp(function, *inputs)
            return *found, *pull_back(tuple(cotangents))

        return jax.tree.map(np.asarray, run(*jax.tree.map(dtype, (inputs, cotangents))))

    with jax.enable_x64(True):
        expected = values_and_gradients(one_by_one, np.float64)
    for x, y in zip(values_and_gradients(xla_chunks.states_before_affine, np.float32), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@needs_eight_devices
def test_a_device_of_a_mesh_has_the_memory_of_one():
    """Kills: chunks for the memory of all devices in a program of one, or of one where all share the arrays."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    found = []

    def local(x):
        found.append(xla_chunks.chunks_at_once(1000, 2**22))
        return x

    with jax.set_mesh(mesh), lowering_for("cuda"):
        jax.eval_shape(jax.shard_map(local, in_specs=P("data"), out_specs=P("data")), jnp.zeros(8))
        found.append(xla_chunks.chunks_at_once(1000, 2**22))
    assert found == [32, 256]


def test_tokens_at_once():
    """Kills: a CPU or TPU that is given long chunks, a GPU that exceeds the memory or gets less than a chunk."""
    for platform in ("cpu", "tpu"):
        with lowering_for(platform):
            assert xla_chunks.tokens_at_once(8192, 10, least=64) == 64
    with lowering_for("cuda"):
        assert xla_chunks.tokens_at_once(8192, 10, least=64) == 8192
        assert xla_chunks.tokens_at_once(8192, 2**17, least=64) == 1024
        assert xla_chunks.tokens_at_once(8192, 2**24, least=64) == 64
