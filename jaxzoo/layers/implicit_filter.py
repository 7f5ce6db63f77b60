"""Implicit long filter: a small MLP of positions computes the taps (Zoology, Arora et al. 2024, Listing 2).

    taps_a = W2 relu(W1 p_a + b1) + b2,    p_a = [a / (L - 1), cos(2 pi f a / L), -sin(2 pi f a / L)]

for `L` positions and `m = (emb_dim - 1) / 2` frequencies `f`, evenly spaced from 1e-4 to `m - 1`. As published, the
only frequency at `emb_dim = 3` is 1e-4: the filter is then nearly piecewise linear in `a`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.layers.causal_conv import uniform_parameter
from jaxzoo.layers.variables import parameter
from jaxzoo.utils.array_typing import Array, Float


class ImplicitFilter(nnx.Module):
    """A filter of `n_taps` taps for each channel; `filter(n)` computes the first `n` of them.

    The filter depends on `n_taps`, which sets the grid of positions.
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
        """Initialises the MLP.

        Args:
          width: number of channels.
          n_taps: number of taps.
          emb_dim: number of position features, odd and at least 3.
          hidden_width: number of hidden units.
          std: standard deviation of normal weights, with zero biases; None: all uniform in +-1/sqrt(fan_in).
          axes: logical axis of the channels.
          decay: whether weight decay applies to the weights.
          rngs: the `params` stream is used.
        """

        def make(shape: tuple[int, ...], fan_in: int, axes: tuple[str | None, ...]) -> nnx.Param[jax.Array]:
            is_kernel = len(shape) == 2
            if std is None:
                return uniform_parameter(shape, fan_in, axes, decay=decay and is_kernel, rngs=rngs)
            value = std * jax.random.normal(rngs.params(), shape) if is_kernel else jnp.zeros(shape)
            return parameter(value, axes, decay=decay and is_kernel)

        self.kernel_1: nnx.Param[jax.Array] = make((emb_dim, hidden_width), emb_dim, (None, None))
        self.bias_1: nnx.Param[jax.Array] = make((hidden_width,), emb_dim, (None,))
        self.kernel_2: nnx.Param[jax.Array] = make((hidden_width, width), hidden_width, (None, *axes))
        self.bias_2: nnx.Param[jax.Array] = make((width,), hidden_width, axes)
        self.n_taps: int = n_taps
        self.emb_dim: int = emb_dim

    def __call__(self, count: int) -> Float[Array, "w d"]:
        """Computes the first `count` taps, at most `n_taps`, float32."""
        positions = jnp.asarray(position_features(self.n_taps, self.emb_dim)[:count])
        hidden = jax.nn.relu(exact_matmul(positions, self.kernel_1[...]) + self.bias_1[...][None, :])
        return exact_matmul(hidden, self.kernel_2[...]) + self.bias_2[...][None, :]


def position_features(n_taps: int, emb_dim: int) -> np.ndarray:
    """Position features `p_a`, `(n_taps, emb_dim)` float32: time, cosines, negative sines."""
    bands = (emb_dim - 1) // 2
    index = np.arange(n_taps)
    angles = np.linspace(1e-4, bands - 1, bands)[None, :] * (2 * np.pi / n_taps * index)[:, None]
    time = np.linspace(0, 1, n_taps)[:, None]
    return np.concatenate([time, np.cos(angles), -np.sin(angles)], axis=1).astype(np.float32)


def exact_matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Matrix product in full precision: rounded to 8 or 11 bits on a TPU or GPU, nearby positions of a long filter
    would coincide, and sines of high frequency would magnify the error."""
    return jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)
