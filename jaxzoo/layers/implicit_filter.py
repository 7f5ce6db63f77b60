"""Long convolution filters that a small MLP computes from positions: Zoology (Arora et al. 2024), Listing 2.

    taps_a = W2 relu(W1 p_a + b1) + b2,    p_a = [a / (L - 1), cos(2 pi f a / L), -sin(2 pi f a / L)]

for `L` positions and `m = (emb_dim - 1) / 2` frequencies `f`, evenly spaced from 1e-4 to `m - 1`. As
published, the only frequency at `emb_dim = 3` is 1e-4: the filter is then nearly piecewise linear in `a`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.array_typing import Array, Float
from jaxzoo.layers.causal_conv import uniform_parameter
from jaxzoo.layers.variables import parameter


class ImplicitFilter(nnx.Module):
    """A filter of `n_taps` taps for each channel; `filter(n)` computes the first `n` of them.

    `n_taps` fixes the grid of positions: the same parameters on another grid are another filter.
    """

    def __init__(
        self,
        width: int,
        *,
        n_taps: int,
        emb_dim: int = 3,
        hidden_width: int = 16,
        std: float | None = None,
        axes: tuple[str | None, ...] = ("channels",),
        decay: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the MLP.

        Args:
          width: channels.
          n_taps: taps.
          emb_dim: position features, odd and at least 3.
          hidden_width: hidden units.
          std: weights normal with this standard deviation, and biases 0. None: all uniform in
            +-1/sqrt(fan_in), PyTorch's default.
          axes: logical axis of the channels.
          decay: whether weight decay applies to the weights.
          rngs: its `params` stream.
        """
        shapes = ((emb_dim, hidden_width), (hidden_width, width))
        kernel_axes = ((None, None), (None, *axes))
        kernels: list[nnx.Param[jax.Array]] = []
        biases: list[nnx.Param[jax.Array]] = []
        for shape, shape_axes in zip(shapes, kernel_axes, strict=True):
            if std is None:
                kernels.append(uniform_parameter(shape, shape[0], shape_axes, decay=decay, rngs=rngs))
                biases.append(uniform_parameter(shape[1:], shape[0], shape_axes[1:], decay=False, rngs=rngs))
            else:
                kernels.append(parameter(std * jax.random.normal(rngs.params(), shape), shape_axes, decay=decay))
                biases.append(parameter(jnp.zeros(shape[1:]), shape_axes[1:], decay=False))
        self.kernel_1: nnx.Param[jax.Array] = kernels[0]
        self.kernel_2: nnx.Param[jax.Array] = kernels[1]
        self.bias_1: nnx.Param[jax.Array] = biases[0]
        self.bias_2: nnx.Param[jax.Array] = biases[1]
        self.n_taps: int = n_taps
        self.emb_dim: int = emb_dim

    def __call__(self, count: int) -> Float[Array, "w d"]:
        """The first `count` taps, at most `n_taps`, float32."""
        positions = jnp.asarray(position_features(self.n_taps, self.emb_dim)[:count])
        hidden = jax.nn.relu(positions @ self.kernel_1[...] + self.bias_1[...][None, :])
        return hidden @ self.kernel_2[...] + self.bias_2[...][None, :]


def position_features(n_taps: int, emb_dim: int) -> np.ndarray:
    """`p_a` of the module docstring, `(n_taps, emb_dim)` float32: time, cosines, negative sines."""
    bands = (emb_dim - 1) // 2
    index = np.arange(n_taps)
    angles = np.linspace(1e-4, bands - 1, bands)[None, :] * (2 * np.pi / n_taps * index)[:, None]
    time = np.linspace(0, 1, n_taps)[:, None]
    return np.concatenate([time, np.cos(angles), -np.sin(angles)], axis=1).astype(np.float32)
