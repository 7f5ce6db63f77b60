"""The depthwise causal convolution of a few taps that mixers put after their projections."""

import jax
from flax import nnx

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.layers.causal_conv import causal_conv, causal_conv_step, uniform_parameter


class ShortConv(nnx.Module):
    """`sum_a taps[a] x_{i-a} + bias`, channel by channel; the last `n_taps - 1` inputs are its history.

    `taps` (n_taps, width), `bias` (width,): both uniform in +-1/sqrt(n_taps), PyTorch's default of a depthwise Conv1d.
    """

    def __init__(self, width: int, n_taps: int, *, axis: str | None = "channels", rngs: nnx.Rngs) -> None:
        self.taps: nnx.Param[jax.Array] = uniform_parameter((n_taps, width), n_taps, (None, axis), rngs=rngs)
        self.bias: nnx.Param[jax.Array] = uniform_parameter((width,), n_taps, (axis,), decay=False, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        history: Float[Array, "b w-1 d"] | None = None,
        *,
        segment_ids: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """All tokens of `x`, after those of `history` (None: zeros); see `causal_conv`."""
        return self._add_bias(causal_conv(x, self.taps[...], history, segment_ids=segment_ids))

    def step(
        self, x_t: Float[Array, "b d"], history: Float[Array, "b w-1 d"]
    ) -> tuple[Float[Array, "b d"], Float[Array, "b w-1 d"]]:
        """One token, and the history after it."""
        y_t, history = causal_conv_step(x_t, self.taps[...], history)
        return self._add_bias(y_t), history

    def _add_bias(self, y: jax.Array) -> jax.Array:
        return y + self.bias[...].astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
