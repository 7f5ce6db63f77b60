"""Decoder of an autoencoder: predicts all tokens of a row from the residual stream at its last token.

MAD's compression (Poli et al. 2024, arXiv 2403.17844; athms/mad-lab, `mad/model/auto_encoder.py`). With the residual
stream r_T of the last token and the sinusoidal embedding p_t of the position (half sines, half cosines, of frequencies
from 1 down to 1/10000):

    x_t = r_T + p_t,   y_t = gelu(W2 norm(gelu(W1 norm(x_t) + b1)) + b2)

The final norm and the head of the model follow. Deviation: the released head has a bias.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.layers.linear import linear
from jaxzoo.layers.norm import Norm, norm
from jaxzoo.utils.array_typing import Array, Float


class LastTokenDecoder(nnx.Module):
    """The equations of the module docstring.

    Args:
      width: width of the residual stream, at least 4.
      norm_kind: LayerNorm or RMSNorm.
      norm_eps: added to the variance (mean square).
      std: standard deviation of the normal initialisation; biases start at 0.
      dtype: dtype of the matmuls.
      rngs: the `params` stream is used.
    """

    def __init__(
        self,
        width: int,
        *,
        norm_kind: Literal["layer", "rms"],
        norm_eps: float,
        std: float,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.dtype: DTypeLike = dtype
        self.norms: nnx.List[Norm] = nnx.List([norm(norm_kind, width, eps=norm_eps, rngs=rngs) for _ in range(2)])
        self.projections: nnx.List[nnx.Linear] = nnx.List(
            [linear(width, width, axes=("embed", None), std=std, bias=True, rngs=rngs) for _ in range(2)]
        )

    def __call__(self, residual: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Computes the features of all positions from the last token's residual stream, float32."""
        _, t, d = residual.shape
        x = residual[:, -1:] + sinusoids(t, d)[None]
        for scale, project in zip(self.norms, self.projections, strict=True):
            x = jax.nn.gelu(project(scale(x).astype(self.dtype)), approximate=False).astype(jnp.float32)
        return x


def sinusoids(length: int, width: int) -> Float[Array, "t d"]:
    """Sines, then cosines, of the positions, float32; an odd width ends with zeros."""
    half = width // 2
    angles = np.arange(length)[:, None] * 10000.0 ** -(np.arange(half) / (half - 1))
    waves = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=1)
    return jnp.asarray(waves, jnp.float32)
