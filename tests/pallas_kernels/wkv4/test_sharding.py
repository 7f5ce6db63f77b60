"""On a mesh: the numbers of one device, without communication."""

import functools

import jax
import numpy as np
import pytest

from pallas_kernels.wkv4 import sharded_wkv4, wkv4
from tests.pallas_kernels.shared import assert_close, collectives, make_mesh, needs_eight_devices
from tests.pallas_kernels.wkv4.cases import Call, evaluate

AXES = {"batch_axes": ("x",), "channel_axes": ("y",)}


@needs_eight_devices
@pytest.mark.full
def test_values_and_gradients():
    """Kills gradients of w or u that are those of a share, and states of other channels."""
    call = Call(t=40, b=4, d=4, documents=True)
    mesh = make_mesh((4, 2))

    def form(function, k, v, w, u, state):
        return function(k, v, w, u, segment_ids=call.segment_ids, initial_state=state, return_state=True)

    sharded = functools.partial(sharded_wkv4, mesh=mesh, **AXES)
    found = evaluate(functools.partial(form, sharded), call, ["float32"] * 6)
    assert_close(found, evaluate(functools.partial(form, wkv4), call, ["float32"] * 6), 1e-5)


@needs_eight_devices
@pytest.mark.full
def test_no_communication():
    """Kills an all-gather."""
    mesh = make_mesh((4, 2))
    specs, shapes = [("x", None, "y")] * 2 + [("y",)] * 2, [(4, 9, 4)] * 2 + [(4,)] * 2
    arrays = [
        jax.device_put(np.zeros(shape, np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    assert collectives(functools.partial(sharded_wkv4, mesh=mesh, **AXES), arrays) == []


def test_errors_name_axis_size_and_rule():
    k, w = np.zeros((1, 3, 4), np.float32), np.zeros((4,), np.float32)
    with pytest.raises(ValueError, match="no mesh; pass mesh= or enter"):
        sharded_wkv4(k, k, w, w)
    with pytest.raises(ValueError, match="'reference' must be one of xla, "):
        sharded_wkv4(k, k, w, w, implementation="reference")
    mesh = make_mesh((jax.device_count(),))
    with pytest.raises(ValueError, match=r"axes \['z'\] are not of the mesh"):
        sharded_wkv4(k, k, w, w, mesh=mesh, channel_axes=("z",))
    if jax.device_count() > 1:
        with pytest.raises(ValueError, match="batch 1 must be a multiple of"):
            sharded_wkv4(k, k, w, w, mesh=mesh, batch_axes=("x",))
