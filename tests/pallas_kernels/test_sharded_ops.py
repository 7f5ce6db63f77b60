"""Sharded ops on eight CPU devices, and which kernels programs take; attention has tests of its own.

Kills: a part that starts from a state of the wrong age; a document that another one's state enters, at a border of
parts too; gradients of shared arrays that are those of a share; an all-gather around the op.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from pallas_kernels import delta_chunks, gated_linear_attention, selective_scan, ut_transform, wkv4
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.selective_scan.problem import Problem as ScanProblem
from pallas_kernels.wkv4.problem import Problem as WkvProblem
from tests.pallas_kernels import calls
from tests.pallas_kernels.delta_chunks.cases import Call as DeltaCall
from tests.pallas_kernels.gated_linear_attention.cases import Call as GatedCall
from tests.pallas_kernels.selective_scan.cases import Call as ScanCall
from tests.pallas_kernels.shared import (
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
from tests.pallas_kernels.ut_transform.cases import Call as TransformCall, ValuesCall
from tests.pallas_kernels.wkv4 import cases as wkv4_cases

HEADS = {"batch_axes": ("x",), "head_axes": ("y",)}
CHANNELS = {"batch_axes": ("x",), "channel_axes": ("y",)}
TOKENS, STATE = P("x", None, "y"), P("x", "y")
GATED = GatedCall(t=160, b=4, h=4, documents=True, decay=0.1)
SCAN = ScanCall(t=160, b=4, d=4, documents=True, decay=0.1)
CASES = {
    "gated": (gated_linear_attention, "gated_linear_attention", GATED, HEADS, [TOKENS] * 4 + [STATE]),
    "scan": (selective_scan, "selective_scan", SCAN, CHANNELS, [TOKENS, TOKENS, P("y"), P("x"), P("x"), STATE]),
    "delta chunks": (delta_chunks, "delta_chunks", DeltaCall(n=3, b=4, h=4), HEADS, [TOKENS] * 5 + [STATE]),
    "transform": (ut_transform, "ut_transform", TransformCall(n=2, b=4, h=4, decay="token"), HEADS, [TOKENS] * 3),
    "inverse": (ut_transform, "ut_inverse", TransformCall(n=2, b=4, h=4, k=0), HEADS, [TOKENS] * 2),
    "delta values": (
        ut_transform,
        "delta_values",
        ValuesCall(n=1, b=4, h=4, decay="token"),
        HEADS,
        [TOKENS] * 4 + [STATE],
    ),
    "wkv4": (
        wkv4,
        "wkv4",
        wkv4_cases.Call(t=40, b=4, d=4, documents=True),
        CHANNELS,
        [TOKENS, TOKENS, P("y"), P("y"), STATE, STATE],
    ),
}
"""Module, function, call, mesh axes of a (4, 2) mesh, and the sharding of the arrays."""


def measured(call, function):
    return (wkv4_cases if isinstance(call, wkv4_cases.Call) else calls).measured(call, function)


def check(module, name, call, shape, axes):
    sharded = functools.partial(getattr(module, f"sharded_{name}"), mesh=make_mesh(shape), **axes)
    assert_close(measured(call, sharded), measured(call, getattr(module, name)), 1e-5)


@needs_eight_devices
@pytest.mark.parametrize("case", [full(case) for case in CASES])
def test_values_and_gradients(case):
    module, name, call, axes, _ = CASES[case]
    check(module, name, call, (4, 2), axes)


@needs_eight_devices
@pytest.mark.parametrize(
    ("case", "call", "shape", "axes"),
    [
        full("gated", GATED, (2, 2, 2), HEADS | {"sequence_axis": "z"}),
        slow("gated", dataclasses.replace(GATED, channel=True), (1, 8), {"sequence_axis": "y"}),
        full("scan", SCAN, (2, 2, 2), CHANNELS | {"sequence_axis": "z"}),
        full("scan", SCAN, (1, 8), {"sequence_axis": "y"}),
    ],
)
def test_parts_of_a_sequence(case, call, shape, axes):
    check(*CASES[case][:2], call, shape, axes)


@needs_eight_devices
@pytest.mark.parametrize("case", [full(case) for case in CASES])
def test_no_communication(case):
    module, name, call, axes, specs = CASES[case]
    call, mesh = dataclasses.replace(call, documents=False), make_mesh((4, 2))
    sharded = functools.partial(getattr(module, f"sharded_{name}"), mesh=mesh, **axes)
    arrays = [np.float32(x) for x in call.arrays() if x is not None]
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]

    def run(*arrays):
        if module is wkv4:
            return call.apply(sharded, *arrays[:4], wkv4.Wkv4State(*arrays[4:], jnp.zeros_like(arrays[4])))
        return call.apply(sharded, *arrays, *[None] * (call.n_operands - len(arrays)))

    assert collectives(run, placed) == []


@pytest.mark.parametrize("name", ["selective_scan", "wkv4"])
def test_errors_name_axis_size_and_rule(name):
    x, a, b = np.zeros((1, 3, 4), np.float32), np.zeros((4, 2), np.float32), np.zeros((1, 3, 2), np.float32)
    arrays, module = {"selective_scan": ((x, x, a, b, b), selective_scan), "wkv4": ((x, x, a[:, 0], a[:, 0]), wkv4)}[
        name
    ]
    sharded, mesh = getattr(module, f"sharded_{name}"), make_mesh((jax.device_count(),))
    for options, message in (
        ({}, "no mesh; pass mesh= or enter"),
        ({"implementation": "reference"}, "'reference' must be one of xla, "),
        ({"mesh": mesh, "channel_axes": ("z",)}, r"axes \['z'\] are not of the mesh"),
        ({"mesh": mesh, "batch_axes": ("x",)}, "batch 1 must be a multiple of"),
    ):
        with pytest.raises(ValueError, match=message):
            sharded(*arrays, **options)


@pytest.mark.full
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["selective_scan", "wkv4"])
def test_kernels_are_taken_forward_and_backward(name, platform):
    """Kills a kernel that the platform does not choose, or that makes other shapes than xla."""
    if name == "wkv4":
        problem = WkvProblem(b=1, t=40, d=512)
        op = lambda k, v: wkv4.wkv4(k, v, *problem.parameters(), return_state=True)  # noqa: E731
    else:
        problem = ScanProblem(b=1, t=40, d=256, n=16)
        op = lambda x, delta, *bc: selective_scan.selective_scan(x, delta, problem.rates(), *bc, return_state=True)  # noqa: E731

    def loss(*arrays):
        y, state = op(*arrays)
        return y.astype(jnp.float32).sum() + jax.tree.leaves(state)[0].sum()

    with lowering_for(platform):
        assert lowered(jax.value_and_grad(loss), problem.inputs(), platform).count(MARKERS[platform]) >= 2
