"""The norm of each head's output, which recurrent mixers put after their state (RetNet's group norm)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Float

HeadNorm = Literal["layer", "rms", "none"]


def head_norm(y: Float[Array, "... v"], kind: HeadNorm, *, eps: float) -> Float[Array, "... v"]:
    """`y / rms(y)`, or the same of `y - mean(y)` (layer), over the last axis, without parameters.

    Computed in float32; `eps` is added to the mean square.
    """
    if kind == "none":
        return y
    x = y.astype(jnp.float32)
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + np.float32(eps))).astype(y.dtype)
