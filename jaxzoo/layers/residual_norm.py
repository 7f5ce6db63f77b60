"""Residual stream with a branch output that is yet to be added, and norms that add it in the same kernel."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.layers.norm import LayerNorm, Norm
from jaxzoo.layers.probe import is_recording
from jaxzoo.parallel.sharding import constrain, on_mesh
from jaxzoo.utils.array_typing import Array, Float
from pallas_kernels.dispatch import may_run_by_default, mesh_objection
from pallas_kernels.residual_norm import api, residual_norm, sharded_residual_norm


class ResidualStream(NamedTuple):
    """The residual stream `residual + branch`."""

    residual: Float[Array, "*b d"]
    """float32."""
    branch: Float[Array, "*b d"] | None = None
    """Output of the last branch, in the compute dtype; None: already added."""


def constrain_residual(x: Array) -> Array:
    """Shards rows and tokens of the residual stream (b, t, d), or rows of (b, d); the width is not sharded."""
    return constrain(x, *("batch", "time")[: x.ndim - 1], None)


def settled(stream: ResidualStream) -> Float[Array, "*b d"]:
    """The sum of the stream."""
    if stream.branch is None:
        return stream.residual
    return constrain_residual(stream.residual + stream.branch.astype(jnp.float32))


def has_kernel(residual: Array | jax.ShapeDtypeStruct, dtype: DTypeLike) -> bool:
    """Whether a verified kernel computes norms of this stream, with outputs of a dtype."""
    return _kernel_form(residual, dtype) is not None


def add_and_norm(
    stream: ResidualStream, norm: Norm, dtype: DTypeLike
) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
    """The sum of the stream, and its norm in a dtype, by the kernel of `has_kernel`."""
    form = _kernel_form(stream.residual, dtype)
    assert form is not None
    assert norm.scale is not None
    centred = isinstance(norm, LayerNorm)
    bias = norm.bias[...] if centred and norm.bias is not None else None
    options = {"bias": bias, "eps": norm.epsilon, "centred": centred, "dtype": dtype}
    return form(*stream, norm.scale[...], **options)


def _kernel_form(residual: Array | jax.ShapeDtypeStruct, dtype: DTypeLike) -> Callable[..., Any] | None:
    """The function that computes sum and norm by a kernel, sharded for the current mesh; None if none applies."""
    if residual.ndim != 3 or 0 in residual.shape or is_recording():
        return None
    if not may_run_by_default("cuda", "residual_norm", "triton"):
        return None
    if jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1:
        return None
    problem = api.problem_of(residual, residual, dtype)
    tokens = jax.ShapeDtypeStruct((*residual.shape[:2], 1, 1), dtype)
    form: Any = on_mesh(residual_norm, _sharded, tokens, tokens)
    allowed = (None,) if form is residual_norm else (None, mesh_objection(problem.ON_MESH))
    return form if api.BACKENDS["triton"].objection(problem) in allowed else None


def _sharded(*arrays: Array, head_axes: tuple[str, ...], **options: Any) -> Any:
    """`sharded_residual_norm`; there are no heads."""
    del head_axes
    return sharded_residual_norm(*arrays, **options)
