"""residual_norm, addition to the residual stream and the norm of the sum: public functions.

For every token, over the width of the stream:

    r = x + y
    n = scale (r - mean) / sqrt(mean((r - mean)^2) + eps) + bias

RMSNorm (Zhang and Sennrich 2019) has mean = 0; LayerNorm (Ba et al. 2016) is `centred`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P
from jax.typing import DTypeLike

from pallas_kernels.layout import checked_mesh, on_shares
from pallas_kernels.op import Op, first_output, saves_nothing, triton as triton_backend, xla as xla_backend
from pallas_kernels.residual_norm import reference, triton, xla
from pallas_kernels.residual_norm.problem import Problem


class Options(NamedTuple):
    """Static options of a call."""

    eps: float
    centred: bool
    dtype: str
    """Dtype of n."""
    branch_dtype: str | None
    """Dtype of y; None: there is no y."""


OP = Op(
    "residual_norm",
    {
        "xla": xla_backend(xla.forward, xla.backward, saved_like=saves_nothing),
        "triton": triton_backend(lambda: (triton.forward, triton.backward), triton.objection, saved_like=saves_nothing),
    },
    operands=("x", "y", "scale", "bias"),
    unread=("x", "y"),
    kept=first_output,
)
"""Contract (`op.py`):

    forward(x, y, scale, bias, options) -> r, n, None
    backward(_, _, scale, bias, r, None, dr, dn, options) -> dx, dy, dscale, dbias

t >= 1; x, r, dr (b, t, d) of the same dtype; y (b, t, d) or None: zeros; n, dn (b, t, d) of `options.dtype`; scale
(d,); bias (d,) or None. Statistics are those of r as rounded to its dtype.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def problem_of(x: Any, y: Any, dtype: DTypeLike) -> Problem:
    """Problem of a call with these inputs (shapes and dtypes suffice) and norms of a dtype."""
    b, t, d = x.shape
    return Problem(b=b, t=t, d=d, stream_dtype=x.dtype.name, dtype=jnp.dtype(dtype).name, adds=y is not None)


def residual_norm(
    x: jax.Array,
    y: jax.Array | None,
    scale: jax.Array,
    *,
    bias: jax.Array | None = None,
    eps: float,
    centred: bool = False,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The equations of the module docstring, with float32 sums and statistics.

    Differentiable in all arrays. The sum over tokens in the gradients of scale and bias has a fixed order.

    Args:
      x: (b, t, d), the residual stream.
      y: (b, t, d), output of a branch, of any dtype; None: zeros, and r is x.
      scale: (d,).
      bias: (d,); None: zeros.
      eps: added to the mean square (variance); positive.
      centred: whether the mean is subtracted, as in LayerNorm.
      dtype: dtype of n; None: that of y, or of x without y.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      r (b, t, d) in the dtype of x, and n (b, t, d) in `dtype`.
    """
    dtype = _checked("residual_norm", x, y, scale, bias, eps, dtype)
    OP.check(implementation)
    if implementation == "reference":
        return reference.residual_norm(x, y, scale, bias=bias, eps=eps, centred=centred, dtype=dtype)
    return _apply(x, y, scale, bias, eps=eps, centred=centred, dtype=dtype, implementation=implementation)


def sharded_residual_norm(
    x: jax.Array,
    y: jax.Array | None,
    scale: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    bias: jax.Array | None = None,
    eps: float,
    centred: bool = False,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`residual_norm` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    Every device has whole tokens. Only gradients of scale and bias are communicated.
    """
    op = "sharded_residual_norm"
    dtype = _checked(op, x, y, scale, bias, eps, dtype)
    OP.check(implementation, tuple(BACKENDS), op)
    time_axes = () if sequence_axis is None else (sequence_axis,)
    mesh = checked_mesh(op, mesh, {"batch": (x.shape[0], batch_axes), "time": (x.shape[1], time_axes)})
    tokens = P(batch_axes, time_axes)
    run = functools.partial(_apply, eps=eps, centred=centred, dtype=dtype, implementation=implementation)
    return on_shares(run, mesh, (x, y, scale, bias), (tokens, tokens, P(), P()), (tokens, tokens))


def _apply(x, y, scale, bias, *, eps, centred, dtype, implementation) -> tuple[jax.Array, jax.Array]:
    """`residual_norm` by an implementation other than "reference"."""
    problem = problem_of(x, y, dtype)
    options = Options(float(eps), centred, dtype, None if y is None else y.dtype.name)
    names = OP.choose(problem, implementation)
    r, n = OP.run(names, problem, x, y, scale, bias, options=options)
    return r, n


def _checked(op, x, y, scale, bias, eps, dtype) -> str:
    """Name of the dtype of n."""
    if x.ndim != 3 or (y is not None and y.shape != x.shape):
        shapes = x.shape if y is None else (x.shape, y.shape)
        raise ValueError(f"{op}: x and y of shapes {shapes} must be (b, t, d), both the same")
    for name, vector in (("scale", scale), ("bias", bias)):
        if vector is not None and vector.shape != x.shape[-1:]:
            raise ValueError(f"{op}: {name} of shape {vector.shape} must be (d,)={x.shape[-1:]}")
    if not eps > 0:
        raise ValueError(f"{op}: eps={eps} must be positive")
    return jnp.dtype((x if y is None else y).dtype if dtype is None else dtype).name
