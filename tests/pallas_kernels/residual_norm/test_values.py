"""residual_norm by XLA, and by interpreted kernels, against float64: sums, norms, all gradients.

Kills: statistics of the branch alone or of padded channels; eps outside the root; a gradient without the term of the
mean or of the variance, or without the cotangent of the sum; sums for the scale that leave out or repeat tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import triton_packages
from pallas_kernels.residual_norm import api, reference, residual_norm, sharded_residual_norm, triton
from pallas_kernels.residual_norm.problem import Problem
from pallas_kernels.residual_norm.workloads import CASES, NormCase
from pallas_kernels.verify.case import Variant
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.triton_cases import check_interpreted


def test_reference_by_hand():
    """Kills: a norm of x, a mean that RMSNorm subtracts or LayerNorm does not, a bias that is scaled."""
    x, y, scale = jnp.float32([[[1, 2]]]), jnp.float32([[[2, 2]]]), jnp.float32([1, 10])
    r, n = reference.residual_norm(x, y, scale, eps=12.5 * 3)
    np.testing.assert_allclose(r, [[[3, 4]]])
    np.testing.assert_allclose(n, np.array([[[3, 40]]]) / np.sqrt(50), rtol=1e-6)
    r, n = reference.residual_norm(x, None, scale, bias=jnp.float32([5, 7]), eps=2.0, centred=True)
    np.testing.assert_allclose(r, x)
    np.testing.assert_allclose(n, [[[5 - 0.5 / 1.5, 7 + 5 / 1.5]]], rtol=1e-6)


FLOATS = [dataclasses.replace(case, dtype="float32") for case in CASES["gpu"] if case.backward and case.t <= 1000]


@pytest.mark.parametrize("case", [FLOATS[1], *map(full, (FLOATS[2], FLOATS[5])), slow(FLOATS[4])], ids=lambda x: x.name)
def test_xla(case: NormCase):
    operands, cotangents = inputs = case.inputs(3)
    forward, xla, options = dataclasses.replace(case, backward=False), case.OP.backends["xla"], case.options(Variant())
    r, n, _ = jax.jit(lambda *x: xla.forward(*x, **options))(*operands)
    assert_close([r, n], forward.truth(inputs), 1e-5)
    found = jax.jit(lambda *x: xla.backward(None, None, *x, None, *cotangents, **options))(*operands[2:], r)
    assert_close(jax.tree.leaves(found), case.truth(inputs), 1e-4)


@pytest.mark.parametrize("bare", [False, True])
def test_gradients_of_the_op(bare):
    """Kills: an operand that is needed and not kept, a gradient of another operand or in another dtype."""
    case = dataclasses.replace(FLOATS[1], bare=bare, dtype="bfloat16")
    (x, y, scale, bias), cotangents = case.inputs(1)
    options = {"eps": 1e-5, "centred": True, "dtype": jnp.bfloat16}

    def run(implementation):
        def call(*z):
            return residual_norm(*z[:3], bias=z[3], **options, implementation=implementation)

        (r, n), pull_back = jax.vjp(call, x, y, scale, bias)
        return r, n, *pull_back(tuple(map(jnp.asarray, cotangents)))

    found, expected = jax.jit(lambda: run("xla"))(), jax.jit(lambda: run("reference"))()
    assert (found[3] is None) == bare
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.dtype == wanted.dtype
        assert_close([got.astype(jnp.float32)], [wanted.astype(jnp.float32)], 1e-2)


def test_on_a_mesh():
    """Kills: a gradient of the scale that is of one device's tokens, or counted once per device."""
    (x, y, scale, bias), cotangents = dataclasses.replace(FLOATS[1], b=4, t=6).inputs(2)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("rows", "time"), axis_types=auto, devices=jax.devices()[:4])

    def run(function, **options):
        def call(x, y, scale, bias):
            return function(x, y, scale, bias=bias, eps=1e-5, centred=True, implementation="xla", **options)

        (r, n), pull_back = jax.vjp(call, x, y, scale, bias)
        return r, n, *pull_back(tuple(map(jnp.asarray, cotangents)))

    split = {"mesh": mesh, "batch_axes": ("rows",), "sequence_axis": "time"}
    assert_close(jax.jit(lambda: run(sharded_residual_norm, **split))(), jax.jit(lambda: run(residual_norm))(), 1e-6)


@pytest.mark.full
def test_interpreted_kernel():
    """One case with a mean and a bias whose channels do not fill a tile, and whose tokens do not fill a program."""
    check_interpreted("residual_norm", "t3_b2")


@pytest.mark.slow
def test_interpreted_kernels():
    check_interpreted("residual_norm")


def test_objections(monkeypatch):
    """Kills a kernel that is named and does not run."""
    monkeypatch.setattr(triton_packages.importlib.util, "find_spec", lambda name: True)
    assert triton.objection(Problem(b=1, t=8, d=8192)) is None
    assert "width 8193" in str(triton.objection(Problem(b=1, t=8, d=8193)))
    assert "float64" in str(triton.objection(Problem(b=1, t=8, d=4, stream_dtype="float64")))
    x = jnp.zeros((1, 4, 3))
    with pytest.raises(NotImplementedError, match="runs on cuda, and this is compiled for cpu"):
        residual_norm(x, x, x[0, 0], eps=1.0, implementation="triton")
    assert api.BACKENDS["triton"].objection(Problem(b=1, t=0, d=4)) == "batch 1, length 0 or width 4 are 0"


def test_errors():
    x, scale = jnp.zeros((1, 3, 4)), jnp.zeros(4)
    for arrays, options, match in [
        ((x, x[:, :2], scale), {}, r"x and y of shapes .*\(1, 2, 4\).* must be \(b, t, d\), both the same"),
        ((x[0], None, scale), {}, r"of shapes \(3, 4\) must be"),
        ((x, x, scale[:3]), {}, r"scale of shape \(3,\) must be \(d,\)=\(4,\)"),
        ((x, x, scale), {"bias": x}, "bias of shape"),
        ((x, x, scale), {"eps": 0.0}, "eps=0.0 must be positive"),
        ((x, x, scale), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            residual_norm(*arrays, **{"eps": 1e-5, **options})
