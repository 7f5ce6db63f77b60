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


@needs_eight_devices
def test_a_device_of_a_mesh_has_the_memory_of_one():
    """Kills: chunks for the memory of all devices in a program of one, or of one where all share the arrays."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    found = []

    def local(x):
        found.append(xla_chunks.chunks_at_once(1000, 2**22))
        return x

    with jax.set_mesh(mesh):
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
