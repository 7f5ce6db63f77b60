"""On a mesh: the numbers of one device, and which arrays are passed on."""

import functools

import jax
import numpy as np
import pytest

from pallas_kernels.gated_linear_attention import gated_linear_attention, sharded_gated_linear_attention
from tests.pallas_kernels.gated_linear_attention.cases import Call, arrays_of, evaluate
from tests.pallas_kernels.shared import LAYOUTS, assert_close, collectives, make_mesh, needs_eight_devices, slow


@needs_eight_devices
@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "channel"), [("everything", False), slow("sequence", True), slow("batch_heads", False)]
)
def test_values_and_gradients(layout, channel):
    """Kills: a part that starts from a state of the wrong age; a document that another one's state enters; an initial
    state that is not decayed over the parts before."""
    shape, axes = LAYOUTS[layout]
    call = Call(t=160, b=4, h=4, g=2, documents=True, channel=channel, decay=0.1)
    ids = call.segment_ids

    def attend(function, q, k, v, g, state):
        return function(q, k, v, g, segment_ids=ids, initial_state=state, return_state=True)

    sharded = functools.partial(sharded_gated_linear_attention, mesh=make_mesh(shape), **axes)
    found = evaluate(functools.partial(attend, sharded), *arrays_of(call))
    assert_close(found, evaluate(functools.partial(attend, gated_linear_attention), *arrays_of(call)), 1e-5)


@needs_eight_devices
@pytest.mark.full
def test_batch_and_heads_need_no_communication():
    """Kills an all-gather."""
    mesh = make_mesh((4, 2))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None, "y"))
    shapes = [(4, 9, 4, *x) for x in ((3,), (3,), (2,), ())]
    arrays = [jax.device_put(np.zeros(shape, np.float32), sharding) for shape in shapes]
    function = functools.partial(sharded_gated_linear_attention, mesh=mesh, batch_axes=("x",), head_axes=("y",))
    assert collectives(function, arrays) == []
