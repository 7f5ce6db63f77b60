"""The base of the ops: derivatives by the implementation that runs, whatever another one would have saved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import op as base, triton_packages
from pallas_kernels.dispatch import Backend, lowering_for
from pallas_kernels.op import Op, Options

X = np.array([1.0, 2.0, -3.0], np.float32)


def cubes(platform, factor, saved_like):
    """`factor x^3 shift` and x; saves `factor` times x^2, which `backward` reads as its own."""

    def forward(x, shift, *, options):
        saved = factor * x[None] ** 2 if saved_like else factor * x**2
        return factor * x**3 * shift, x if options.return_state else None, saved if options.save_states else None

    def backward(x, shift, y, saved, dy, dx, *, options):
        np.testing.assert_equal(y.shape, x.shape)
        return (3 * saved.reshape(x.shape) * shift * dy + (0 if dx is None else dx),)

    return Backend(platform, lambda problem: None, forward, backward, saved_like=saved_like)


def saved_like(x, shift, *, options):
    assert options.save_states
    return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)


CUBE = Op(
    "cube",
    {
        "xla": cubes(None, 1.0, None),
        "fast": cubes("cpu", 2.0, saved_like),
        "other": cubes("tpu", 5.0, lambda x, shift, *, options: jax.ShapeDtypeStruct((7,), jnp.int32)),
    },
    operands=("x", "shift"),
    fixed=("shift",),
    kept=base.first_output,
)


def _plain_backward(x, shift, dy, dx):
    return (3 * x**2 * shift * dy + dx,)


PLAIN = dataclasses.replace(
    CUBE, backends=CUBE.backends | {"xla": base.xla_recurrence(lambda x, shift: (x**3 * shift, x), _plain_backward, 2)}
)
"""The same, where "xla" saves nothing."""


def gradient(implementation=None, weight=0.0, op=CUBE):
    def loss(x):
        names = op.choose("a problem", implementation)
        options = Options(return_state=True, save_states=False)
        y, state = op.run(names, "a problem", x, jnp.ones_like(x), options=options)
        return y.sum() + weight * state.sum()

    return jax.grad(loss)


@pytest.mark.parametrize("op", [CUBE, PLAIN], ids=["xla_saves", "xla_saves_nothing"])
@pytest.mark.parametrize("traced_for", ["cpu", "tpu", "cuda"])
def test_gradients_are_of_the_implementation_that_runs(traced_for, op):
    """Kills gradients from arrays that another implementation would have saved: zeros, or of another shape."""
    with lowering_for(traced_for):
        found = jax.jit(gradient(weight=10.0, op=op))(X)
    np.testing.assert_allclose(found, 6 * X**2 + 10)


@pytest.mark.parametrize(
    ("capability", "saver"), [("7.5", "xla"), ("8.0", "triton"), ("9.0", "mosaic_gpu"), ("10.0", "triton")]
)
def test_residuals_are_of_the_kernels_that_may_run(capability, saver, monkeypatch):
    """Kills residuals of Hopper kernels in programs for GPUs that cannot run these, which would recompute their own."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    kernels = {name: cubes("cuda", 2.0, saved_like) for name in ("mosaic_gpu", "triton")}
    op = dataclasses.replace(CUBE, backends={**PLAIN.backends, **kernels})
    with lowering_for("cuda", capability=capability):
        assert base._Call(op, (*kernels, "xla"), "a problem", ()).saver == saver


def test_triton_saves_for_its_own_backward_pass(monkeypatch):
    """Kills gradients by Triton from what XLA would have saved; here its kernels run on a CPU."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    for like in (saved_like, None):
        op = dataclasses.replace(CUBE, backends={"xla": CUBE.backends["xla"], "triton": cubes("cpu", 2.0, like)})
        with lowering_for("cpu"):
            np.testing.assert_allclose(jax.jit(gradient(weight=10.0, op=op))(X), 6 * X**2 + 10)


def test_implementation_by_name():
    """Kills another implementation in the backward pass than in the forward pass."""
    np.testing.assert_allclose(gradient("xla")(X), 3 * X**2)
    np.testing.assert_allclose(gradient("fast")(X), 6 * X**2)
    with pytest.raises(NotImplementedError, match=r"^other: runs on tpu, and this is compiled for cpu"):
        gradient("other")(X)


def test_names_are_checked():
    CUBE.check("fast")
    with pytest.raises(ValueError, match="cube: implementation='slow' must be one of reference, xla, fast, other, or"):
        CUBE.check("slow")
