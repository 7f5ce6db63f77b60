"""`sharded_sliding_window_attention` on eight CPU devices: the same numbers, and only a halo between devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from pallas_kernels.sliding_window import (
    SlidingWindowCache,
    sharded_sliding_window_attention,
)
from pallas_kernels.sliding_window.problem import Problem
from tests.pallas_kernels.shared import (
    AUTO,
    LAYOUTS,
    MARKERS,
    PLATFORMS,
    assert_close,
    collectives,
    full,
    lowered,
    make_mesh,
    needs_eight_devices,
    slow,
)
from tests.pallas_kernels.sliding_window.cases import Call, truth

pytestmark = needs_eight_devices


def run_on(mesh, axes, call):
    """As `cases.measured`, on a mesh, from arrays that lie anywhere."""
    arrays, cotangents = ([jnp.asarray(x, jnp.float32) for x in xs] for xs in (call.arrays(), call.cotangents()))
    ids = None if call.segment_ids() is None else jnp.asarray(call.segment_ids())
    options = {"window": call.window, "mesh": mesh, "segment_ids": ids, **axes}

    @jax.jit
    def run(arrays, cotangents):
        def outputs(q, k, v, *rings):
            if not rings:
                return [sharded_sliding_window_attention(q, k, v, **options)]
            cache = SlidingWindowCache(*rings, jnp.asarray(call.positions, jnp.int32))
            y, cache = sharded_sliding_window_attention(q, k, v, initial_cache=cache, return_cache=True, **options)
            return [y, cache.k, cache.v]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    return run(arrays, cotangents)


def check(mesh, axes, call):
    outputs, gradients = run_on(mesh, axes, call)
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize(
    ("layout", "kv_heads"),
    [("everything", 2), slow("everything", 1)],
)
def test_equals_the_truth(layout, kv_heads):
    """Kills a halo of the wrong part, side or length, a past before the first part, a cache of the wrong part, and
    gradients that stop at a border or are multiplied by the number of devices. Rows at several positions, the first
    within its first window."""
    shape, axes = LAYOUTS[layout]
    b = {"sequence": 3, "everything": 2}.get(layout, 8)
    call = Call(t=32, b=b, h=4, g=kv_heads, window=9, cache=b < 8)
    check(make_mesh(shape), axes, call)


@pytest.mark.slow
@pytest.mark.parametrize("window", [full(9), slow(1), slow(8), slow(40)])
def test_parts_shorter_than_the_halo(window):
    """Kills a halo that ends at the nearest part: parts of 3 tokens, 0 to all of the parts before."""
    check(make_mesh((8,)), {"sequence_axis": "x"}, Call(t=24, b=3, h=2, g=2, window=window, cache=window != 8))


@pytest.mark.full
def test_segments_across_parts():
    """Kills ids that stay behind: tokens of a part meet those of the part before only in their own segment."""
    check(make_mesh((8,)), {"sequence_axis": "x"}, Call(t=40, b=2, h=2, g=2, window=8, segments=True))


def communication(mesh, axes, call):
    """[(kind, elements)] of a forward and backward pass."""
    batch, heads = axes.get("batch_axes", ()), axes.get("head_axes", ())
    spec = P(batch, (axes["sequence_axis"],) if "sequence_axis" in axes else (), heads)
    arrays = [jax.device_put(jnp.asarray(x, jnp.float32), NamedSharding(mesh, spec)) for x in call.arrays()]

    def loss(*x):
        return sharded_sliding_window_attention(*x, window=call.window, mesh=mesh, **axes).sum()

    def gradients(*x):
        dy = jax.grad(loss, (0, 1, 2))(*x)
        return [jax.lax.with_sharding_constraint(g, x.sharding) for g, x in zip(dy, arrays, strict=True)]

    return collectives(gradients, arrays)


@pytest.mark.parametrize(("window", "exchanges"), [full(9, 1), full(65, 1), (66, 2)])
def test_sequence_passes_only_a_halo(window, exchanges):
    """Kills an exchange of more than window - 1 tokens of keys and of values, there and back; parts have 64."""
    call = Call(t=512, b=1, h=1, g=1, k=4, v=4, window=window)
    found = communication(make_mesh((8,)), {"sequence_axis": "x"}, call)
    assert {kind for kind, _ in found} == {"collective-permute"}
    assert len(found) <= 4 * exchanges
    assert sum(size for _, size in found) == 4 * (window - 1) * 4


@pytest.mark.parametrize("platform", PLATFORMS)
def test_kernels_run_inside(platform):
    """Kills a mesh that makes the API fall to xla: inside shard_map all axes are manual."""
    shape, axes = LAYOUTS["everything"]
    mesh = jax.sharding.AbstractMesh(shape, ("x", "y", "z"), axis_types=(AUTO,) * 3)
    arrays = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P("x", "z", "y")))
        for x in jax.eval_shape(Problem(b=2, t=256, h=4, k=64, v=64, window=64).inputs)
    ]
    text = lowered(lambda *x: sharded_sliding_window_attention(*x, window=64, mesh=mesh, **axes), arrays, platform)
    assert text.count(f"@{MARKERS[platform]}") == 1


def test_errors():
    """Kills uneven shards that would be padded or fail inside the compiler, and checks of local shapes only."""
    q, k, v = (np.float32(x) for x in Call(t=10, b=3, window=4).arrays())
    with pytest.raises(ValueError, match="sharded_sliding_window_attention: no mesh"):
        sharded_sliding_window_attention(q, k, v, window=4)
    mesh = make_mesh((2, 4))
    with pytest.raises(ValueError, match="time 10 must be a multiple of 4"):
        sharded_sliding_window_attention(q, k, v, window=4, mesh=mesh, sequence_axis="y")
    with pytest.raises(ValueError, match="3 query heads must be a multiple of 2"):
        sharded_sliding_window_attention(q[:, :, :3], k, v, window=4, mesh=mesh)
