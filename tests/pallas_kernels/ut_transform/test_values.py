"""What tokens of a delta rule write: the XLA form and the Hopper kernels, interpreted, against float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.op import Options
from pallas_kernels.ut_transform import delta_values, sharded_delta_values, values_api as api
from pallas_kernels.ut_transform.problem import ValuesProblem
from tests.pallas_kernels.shared import (
    assert_close,
    collectives,
    full,
    make_mesh,
    needs_eight_devices,
    slow,
)
from tests.pallas_kernels.ut_transform.cases import ValuesCall, evaluate, values_arrays_of, values_truth


def by_name(implementation: str | None = "xla"):
    """`delta_values` as a function of arrays alone."""
    return lambda *arrays: delta_values(*arrays[:4], initial_state=arrays[4], implementation=implementation)


@pytest.mark.parametrize(
    "call",
    [
        ValuesCall(n=2, decay="token", kind="documents"),
        full(ValuesCall(n=2, decay="channel")),
        full(ValuesCall(n=1, state=False)),
    ],
    ids=str,
)
def test_xla(call):
    """Kills: read and write that are not exchanged in the reverse pass; a gradient of the keys, of their other users,
    or of the state that is lost."""
    found, expected = evaluate(by_name(), *values_arrays_of(call)), values_truth(call)
    assert_close(found[0], expected[0], 1e-5)
    assert_close(found[1], expected[1], 1e-4)


def case(n, **options):
    return ValuesCall(n=n, **{"b": 1, "h": 1, "k": 64, "v": 64, "dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    "call",
    [
        case(2, decay="token"),
        case(2, decay="channel", kind="weak"),
        full(case(9, h=2, state=False)),
        full(case(2, decay="channel", kind="strong")),
        slow(case(9, b=2, decay="channel", kind="documents")),
        slow(case(3, h=2, decay="channel", state=False)),
        slow(case(2, decay="channel", kind="documents", v=128)),
        slow(case(3, k=128, v=128, decay="token")),
        slow(case(2, b=2, v=128)),
    ],
    ids=str,
)
def test_mosaic_gpu(call):
    """Kills: states of another chunk, or rows of a state of the other half of the channels; a product that is not
    transposed; values or cotangents that are overwritten before they were read; a read or a write with the decay of the
    other; a keep that lacks its gradient; with strong decays a positive exponent.

    With beta up to 2 states keep the errors of all chunks: 2^-9 for each rounding of mix, read, write, states and y."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    arrays, cotangents = values_arrays_of(call)
    kernels, options = api.BACKENDS["mosaic_gpu"], Options(return_state=False, save_states=True)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    y, _, saved = kernels.forward(*arrays, options=options, interpret=interpret)
    like = jax.eval_shape(lambda *x: api.BACKENDS["xla"].forward(*x, options=options), *arrays)
    described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert described((y, saved)) == described((like[0], like[2]))
    gradients = kernels.backward(*arrays, y, saved, *cotangents, options=options, interpret=interpret)
    expected = values_truth(call)
    assert_close([y], expected[0][:1], 6e-3)
    assert_close([np.asarray(x) for x in gradients if x is not None], expected[1], 1e-2)


def test_objections_and_errors():
    served: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64, "v": 64}
    objection = api.BACKENDS["mosaic_gpu"].objection
    assert objection(ValuesProblem(**served)) is None
    other: dict[str, Any]
    for other, message in (({"k": 32}, "key width 32"), ({"v": 32}, "value width 32")):
        assert message in (objection(ValuesProblem(**served | other)) or "")
    k, beta = jnp.zeros((1, 64, 2, 3), jnp.float32), jnp.zeros((1, 64, 2), jnp.float32)
    with pytest.raises(ValueError, match=r"v of \(1, 32, 2, 3\) float32 must be \(b, t, h, v\) of k"):
        delta_values(k, k[:, :32], beta)
    with pytest.raises(ValueError, match="must be one of"):
        delta_values(k, k, beta, implementation="fast")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        delta_values(k, k, beta, implementation="mosaic_gpu")
    y, keys = delta_values(k[:, :0], k[:, :0], beta[:, :0])
    assert y.shape == keys.shape == (1, 0, 2, 3)


@pytest.mark.full
@needs_eight_devices
def test_sharded():
    """Kills: a share of other rows or heads, collectives."""
    call, mesh = ValuesCall(n=1, b=4, h=4, decay="token"), make_mesh((4, 2))

    def sharded(*arrays):
        options = {"mesh": mesh, "batch_axes": ("x",), "head_axes": ("y",)}
        return sharded_delta_values(*arrays[:4], initial_state=arrays[4], **options)

    arrays, cotangents = values_arrays_of(call)
    assert_close(evaluate(sharded, arrays, cotangents), values_truth(call), 1e-4)
    specs = [jax.P("x", None, "y")] * 4 + [jax.P("x", "y")]
    placed = [jax.device_put(z, jax.sharding.NamedSharding(mesh, spec)) for z, spec in zip(arrays, specs, strict=True)]
    assert collectives(sharded, placed) == []
