"""LayerNorm and RMSNorm in float32, with a learned scale that starts at 1."""

from typing import Literal, TypeAlias

from flax import nnx

from jaxzoo.layers.variables import metadata

Norm: TypeAlias = nnx.LayerNorm | nnx.RMSNorm


def norm(kind: Literal["layer", "rms"], width: int, *, eps: float, rngs: nnx.Rngs) -> Norm:
    """The norm of `kind` over the last axis of float32 input; `eps` is added to the (mean) square."""
    vector = metadata(("embed",), decay=False)
    if kind == "rms":
        return nnx.RMSNorm(width, epsilon=eps, scale_metadata=vector, rngs=rngs)
    return nnx.LayerNorm(width, epsilon=eps, scale_metadata=vector, bias_metadata=vector, rngs=rngs)
