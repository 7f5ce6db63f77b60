"""Depthwise causal convolution with a few taps, used after the projections of mixers."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.causal_conv import causal_conv_from, uniform_parameter
from jaxzoo.layers.variables import along_last
from jaxzoo.utils.array_typing import Array, Float, Int


class ShortConv(nnx.Module):
    """`sum_a taps[a] x_{i-a} + bias` for each channel; the history is the last `n_taps - 1` inputs.

    `taps` (n_taps, width), `bias` (width,): both uniform in +-1/sqrt(n_taps), PyTorch's default of a depthwise Conv1d.
    `taps[a]` is `conv1d.weight[:, 0, n_taps - 1 - a]` of PyTorch.

    Args:
      width: number of channels.
      n_taps: taps per channel, including the current token's.
      bias: whether there is a bias.
      n_plain: number of channels, from the first on, without a SiLU; the others have one (Mamba-2, delta rules). None:
        no channel has one.
      axis: logical axis of the channels.
      rngs: the `params` stream is used.
    """

    def __init__(
        self,
        width: int,
        n_taps: int,
        *,
        bias: bool = True,
        n_plain: int | None = None,
        axis: str | None = "channels",
        rngs: nnx.Rngs,
    ) -> None:
        self.taps: nnx.Param[jax.Array] = uniform_parameter((n_taps, width), n_taps, (None, axis), rngs=rngs)
        self.n_plain: int = width if n_plain is None else n_plain
        self.bias: nnx.Param[jax.Array] | None = (
            uniform_parameter((width,), n_taps, (axis,), decay=False, rngs=rngs) if bias else None
        )

    def __call__(
        self,
        x: Float[Array, "*b d"],
        history: Float[Array, "b w-1 d"] | None = None,
        *,
        segment_ids: Int[Array, "b t"] | None = None,
    ) -> tuple[Float[Array, "*b d"], Float[Array, "b w-1 d"]]:
        """Outputs and new history for tokens `(b, t, d)`, or one token `(b, d)`; `history` None: zeros."""
        y, history = causal_conv_from(history, x, self.taps[...], segment_ids=segment_ids)
        if self.bias is not None:
            y = y + along_last(self.bias[...], y)
        if self.n_plain == 0:
            return jax.nn.silu(y), history
        if self.n_plain < y.shape[-1]:
            y = jnp.concatenate([y[..., : self.n_plain], jax.nn.silu(y[..., self.n_plain :])], axis=-1)
        return y, history
