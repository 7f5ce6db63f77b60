"""On a mesh: the numbers of one device, and which arrays are passed on."""

import functools

import jax
import numpy as np
import pytest

from pallas_kernels.selective_scan import selective_scan, sharded_selective_scan
from tests.pallas_kernels.selective_scan.cases import Call, arrays_of, evaluate
from tests.pallas_kernels.shared import assert_close, collectives, make_mesh, needs_eight_devices, slow

LAYOUTS = {
    "everything": ((2, 2, 2), {"batch_axes": ("x",), "channel_axes": ("y",), "sequence_axis": "z"}),
    "sequence": ((1, 8), {"sequence_axis": "y"}),
    "batch_channels": ((4, 2), {"batch_axes": ("x",), "channel_axes": ("y",)}),
}
"""Shapes of meshes of eight devices, and what is sharded over their axes."""


@needs_eight_devices
@pytest.mark.full
@pytest.mark.parametrize("layout", ["everything", "sequence", slow("batch_channels")])
def test_values_and_gradients(layout):
    """Kills: a part that starts from a state of the wrong age; a document that another one's state enters, at a border
    of parts too; an initial state that is not decayed over the parts before; gradients of b, c or a that are those of a
    share."""
    shape, axes = LAYOUTS[layout]
    call = Call(t=160, b=4, d=4, documents=True, decay=0.1)
    ids = call.segment_ids

    def scan(function, *arrays):
        return function(*arrays[:5], segment_ids=ids, initial_state=arrays[5], return_state=True)

    sharded = functools.partial(sharded_selective_scan, mesh=make_mesh(shape), **axes)
    found = evaluate(functools.partial(scan, sharded), *arrays_of(call))
    assert_close(found, evaluate(functools.partial(scan, selective_scan), *arrays_of(call)), 1e-5)


@needs_eight_devices
@pytest.mark.full
def test_batch_and_channels_need_no_communication():
    """Kills an all-gather."""
    mesh = make_mesh((4, 2))
    specs = [("x", None, "y"), ("x", None, "y"), ("y",), ("x",), ("x",)]
    shapes = [(4, 9, 4), (4, 9, 4), (4, 3), (4, 9, 3), (4, 9, 3)]
    arrays = [
        jax.device_put(np.zeros(shape, np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    function = functools.partial(sharded_selective_scan, mesh=mesh, batch_axes=("x",), channel_axes=("y",))
    assert collectives(function, arrays) == []


def test_errors_name_axis_size_and_rule():
    x, a, b = np.zeros((1, 3, 4), np.float32), np.zeros((4, 2), np.float32), np.zeros((1, 3, 2), np.float32)
    with pytest.raises(ValueError, match="no mesh; pass mesh= or enter"):
        sharded_selective_scan(x, x, a, b, b)
    with pytest.raises(ValueError, match="'reference' must be one of xla, "):
        sharded_selective_scan(x, x, a, b, b, implementation="reference")
    mesh = make_mesh((jax.device_count(),))
    with pytest.raises(ValueError, match=r"axes \['z'\] are not of the mesh"):
        sharded_selective_scan(x, x, a, b, b, mesh=mesh, channel_axes=("z",))
    if jax.device_count() > 1:
        with pytest.raises(ValueError, match="batch 1 must be a multiple of"):
            sharded_selective_scan(x, x, a, b, b, mesh=mesh, batch_axes=("x",))
