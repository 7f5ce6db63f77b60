"""`sharded_taylor_attention` on eight CPU devices: the same numbers, and nothing but states between devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from pallas_kernels.taylor_attention import TaylorState, sharded_taylor_attention, taylor_attention
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.shared import (
    AUTO,
    LAYOUTS,
    MARKERS,
    assert_close,
    full,
    make_mesh,
    needs_eight_devices,
    slow,
)
from tests.pallas_kernels.taylor_attention.cases import Call

pytestmark = needs_eight_devices


def place(mesh, layout, arrays):
    """Tokens, and then states, as the layout shards them."""
    batch, heads = layout.get("batch_axes", ()), layout.get("head_axes", ())
    time = (layout["sequence_axis"],) if "sequence_axis" in layout else ()
    specs = [P(batch, time, heads)] * 3 + [P(batch, heads)] * 2
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=False)]


def value_and_gradients(attend, arrays, cotangents, decay):
    def outputs(q, k, v, *state):
        state = TaylorState(*state) if state else None
        y, last = attend(q, k, v, decay=decay, initial_state=state, return_state=True)
        return [y, *last]

    def run(arrays, cotangents):
        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    return jax.jit(run)(arrays, cotangents)


@pytest.mark.parametrize(
    ("layout", "kv_heads"),
    [("everything", 2), full("sequence", 2), slow("everything", 1)],
)
def test_equals_one_device(layout, kv_heads):
    """Kills a prefix that is inclusive, undecayed or one part off, an initial state that enters twice, a state
    of the wrong part, and gradients multiplied by the number of devices."""
    shape, axes = LAYOUTS[layout]
    call = Call(t=24, b=8, h=4, g=kv_heads, decay=True)
    arrays, cotangents = ([jnp.asarray(x, jnp.float32) for x in xs] for xs in (call.arrays(), call.cotangents()))
    decay, mesh = jnp.asarray(call.rates), make_mesh(shape)

    def sharded(*x, **options):
        return sharded_taylor_attention(*x, mesh=mesh, **axes, **options)

    if kv_heads == 1:
        axes_of_keys = {name: value for name, value in axes.items() if name != "head_axes"}
        placed = place(mesh, axes, arrays[:1]) + place(mesh, axes_of_keys, arrays[:3])[1:] + arrays[3:]
    else:
        placed = place(mesh, axes, arrays)
    expected = value_and_gradients(taylor_attention, arrays, cotangents, decay)
    assert_close(value_and_gradients(sharded, placed, cotangents, decay), expected, 1e-5)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_kernels_run_inside(platform):
    """Kills a mesh that makes the API fall to xla: inside shard_map all axes are manual."""
    shape, axes = LAYOUTS["everything"]
    mesh = jax.sharding.AbstractMesh(shape, ("x", "y", "z"), axis_types=(AUTO,) * 3)
    arrays = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P("x", "z", "y")))
        for x in jax.eval_shape(Problem(b=2, t=256, h=16, k=16, v=64).inputs)
    ]
    run = jax.jit(lambda *x: sharded_taylor_attention(*x, mesh=mesh, **axes))
    text = run.trace(*arrays).lower(lowering_platforms=(platform,)).as_text()
    assert text.count(f"@{MARKERS[platform]}") == 1


def test_errors():
    """Kills uneven shards that would be padded or fail inside the compiler."""
    q, k, v = (np.float32(x) for x in Call(t=10, b=3, h=4, g=2).arrays()[:3])
    with pytest.raises(ValueError, match="no mesh; pass mesh= or enter"):
        sharded_taylor_attention(q, k, v)
    mesh = make_mesh((2, 4))
    with pytest.raises(ValueError, match=r"axes \['w'\] are not of the mesh \{'x': 2, 'y': 4\}"):
        sharded_taylor_attention(q, k, v, mesh=mesh, batch_axes=("w",))
    with pytest.raises(ValueError, match="batch 3 must be a multiple of 2"):
        sharded_taylor_attention(q, k, v, mesh=mesh, batch_axes=("x",))
    with pytest.raises(ValueError, match="time 10 must be a multiple of 4"):
        sharded_taylor_attention(q, k, v, mesh=mesh, sequence_axis="y")
    with pytest.raises(ValueError, match="key/value heads 2 must be a multiple of 4"):
        sharded_taylor_attention(q, k, v, mesh=mesh, head_axes=("y",))
