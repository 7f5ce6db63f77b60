"""Programs for eight real chips, compiled without them: kernels on every chip, nothing but states or halos between."""

import functools
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from pallas_kernels.compile_check.compiler_text import read_program
from pallas_kernels.gated_linear_attention import sharded_gated_linear_attention
from pallas_kernels.gated_linear_attention.problem import Problem as GatedProblem
from pallas_kernels.selective_scan import sharded_selective_scan
from pallas_kernels.selective_scan.problem import Problem as ScanProblem
from pallas_kernels.sliding_window import sharded_sliding_window_attention
from pallas_kernels.sliding_window.problem import Problem as WindowProblem
from pallas_kernels.taylor_attention import sharded_taylor_attention, taylor_feature_count
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.aot import absent_devices

pytestmark = pytest.mark.full


class Op(NamedTuple):
    """A sharded op, a shape, and its implementation by platform."""

    function: functools.partial
    spec: Problem | WindowProblem | GatedProblem
    taken: dict[str, str]
    """Without a platform: xla."""


SPEC = Problem(b=4, t=8192, h=16, k=16, v=64)
WINDOW = WindowProblem(b=4, t=8192, h=16, k=64, v=64, window=64)
SCAN = ScanProblem(b=4, t=2048, d=2048, n=16)
OPS = {
    "taylor": Op(functools.partial(sharded_taylor_attention), SPEC, {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"}),
    "window": Op(
        functools.partial(sharded_sliding_window_attention, window=64), WINDOW,
        {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    ),
    "gated": Op(
        functools.partial(sharded_gated_linear_attention),
        GatedProblem(b=4, t=8192, h=16, k=128, v=128), {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    ),
    "gated_channel": Op(
        functools.partial(sharded_gated_linear_attention),
        GatedProblem(b=4, t=8192, h=16, k=128, v=128, channel=True), {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"},
    ),
}  # fmt: skip
IN_CI = [("gated_channel", "v5e")]
"""Without communication over batch and heads; the others before a release."""
COLLECTIVE = re.compile(
    r"= (\(.*?\)|\S+) (all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|ragged-all-to-all|recv|"
    r"reduce-scatter|send)(?:-start)?\("
)


@pytest.fixture
def target(request, monkeypatch):
    return absent_devices(request.param, monkeypatch)


def targets(*names):
    """Compiles for these in CI, for the others before a release."""
    params = [pytest.param(name, marks=[] if name in names else [pytest.mark.slow]) for name in ("h100", "v5e")]
    return pytest.mark.parametrize("target", params, indirect=True)


def compiled(target, mesh, spec, function, arrays):
    """The program's text; all arrays enter and leave sharded by `spec`."""
    sharding = NamedSharding(mesh, spec)
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in arrays]
    lowered = jax.jit(function, out_shardings=sharding).trace(*inputs).lower(lowering_platforms=(target.platform,))
    return lowered.compile().as_text()


def collectives(text):
    """Kinds, and shapes of what is passed, of all collective operations; the scalars are their handles."""
    found = COLLECTIVE.findall(text)
    shapes = {tuple(int(n) for n in size.split(",")) for s, _ in found for size in re.findall(r"\[([\d,]+)\]", s)}
    return {kind for _, kind in found}, shapes


def value_and_gradients(op, target, mesh_shape, axes):
    mesh = Mesh(np.array(target.devices(8)).reshape(mesh_shape), ("x", "y"))

    def run(dy, *inputs):
        y, pull_back = jax.vjp(lambda *x: op.function(*x, mesh=mesh, **axes), *inputs)
        return y, pull_back(dy)

    inputs = jax.eval_shape(op.spec.inputs)
    spec = P(axes.get("batch_axes"), axes.get("sequence_axis"), axes.get("head_axes"))
    return compiled(target, mesh, spec, run, (inputs[2], *inputs))


def assert_kernels(op, target, text):
    kernels = read_program(text, {})
    taken = op.taken.get(target.platform)
    assert {kernel.implementation for kernel in kernels} == ({taken} if taken else set())
    assert len(kernels) >= 2 or taken is None  # forward and backward


@pytest.mark.parametrize(
    ("op", "target"),
    [
        pytest.param(op, target, id=f"{name}-{target}", marks=[pytest.mark.slow] * ((name, target) not in IN_CI))
        for name, op in OPS.items()
        for target in ("h100", "v5e")
    ],
    indirect=["target"],
)
def test_batch_and_heads_need_no_communication(target, op):
    """Kills an all-gather around a kernel, forward or backward."""
    text = value_and_gradients(op, target, (4, 2), {"batch_axes": ("x",), "head_axes": ("y",)})
    assert_kernels(op, target, text)
    assert collectives(text) == (set(), set())


@targets("h100")
def test_a_sharded_sequence_passes_states_alone(target):
    """Kills an exchange of tokens: all that is passed has the shape of a state, in which there is no time."""
    op = OPS["taylor"]
    text = value_and_gradients(op, target, (2, 4), {"head_axes": ("x",), "sequence_axis": "y"})
    assert_kernels(op, target, text)
    z = (SPEC.b, SPEC.h // 2, taylor_feature_count(SPEC.k))
    assert collectives(text) == ({"collective-permute"}, {z, (*z, SPEC.v)})


@targets("v5e")
def test_a_sharded_sequence_passes_a_halo_alone(target):
    """Kills an exchange of more than window - 1 tokens, of whichever layout."""
    op = OPS["window"]
    text = value_and_gradients(op, target, (2, 4), {"head_axes": ("x",), "sequence_axis": "y"})
    assert_kernels(op, target, text)
    kinds, shapes = collectives(text)
    assert kinds == {"collective-permute"}
    halo = WINDOW.b * (WINDOW.window - 1) * WINDOW.h // 2 * WINDOW.k
    assert {int(np.prod(shape)) for shape in shapes} == {halo}


@targets("h100", "v5e")
def test_an_exchange_is_seen(target):
    """Kills a search that finds nothing."""
    mesh = Mesh(np.array(target.devices(8)), ("x",))
    text = compiled(target, mesh, P(None, "x"), lambda x: x[:, ::-1], jax.eval_shape(SPEC.inputs)[:1])
    kinds, shapes = collectives(text)
    assert kinds
    assert max(int(np.prod(shape)) for shape in shapes) >= SPEC.b * SPEC.t * SPEC.h * SPEC.k // 8


@targets()
def test_a_scan_sums_gradients_of_what_channels_share(target):
    """Kills an all-gather around the kernels of the scan: all that is passed are sums of the gradients of b and c."""
    mesh, spec = Mesh(np.array(target.devices(8)).reshape(4, 2), ("x", "y")), SCAN
    tokens, maps = (NamedSharding(mesh, P(*names)) for names in (("x", None, "y"), ("x",)))

    def run(dy, *inputs):
        def scan(x, delta, b, c):
            axes = {"batch_axes": ("x",), "channel_axes": ("y",)}
            return sharded_selective_scan(x, delta, spec.rates(), b, c, mesh=mesh, **axes)

        y, pull_back = jax.vjp(scan, *inputs)
        return y, pull_back(dy)

    shardings = (tokens, tokens, maps, maps)
    arrays = jax.eval_shape(spec.inputs)
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(arrays, shardings, strict=True)]
    traced = jax.jit(run, out_shardings=(tokens, shardings)).trace(inputs[0], *inputs)
    text = traced.lower(lowering_platforms=(target.platform,)).compile().as_text()
    taken = {"cuda": "mosaic_gpu", "tpu": "mosaic_tpu"}[target.platform]
    assert {kernel.implementation for kernel in read_program(text, {})} == {taken}
    kinds, shapes = collectives(text)
    assert kinds == {"all-reduce"}
    assert max(int(np.prod(shape)) for shape in shapes) <= 2 * spec.b // 4 * spec.t * spec.n  # both in one, or not
