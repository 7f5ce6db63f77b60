"""The depthwise causal convolution of a few taps that mixers put after their projections."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.causal_conv import causal_conv_from, uniform_parameter
from jaxzoo.layers.variables import along_last
from jaxzoo.utils.array_typing import Array, Float, Int


class ShortConv(nnx.Module):
    """`sum_a taps[a] x_{i-a} + bias`, channel by channel; the last `n_taps - 1` inputs are its history.

    `taps` (n_taps, width), `bias` (width,): both uniform in +-1/sqrt(n_taps), PyTorch's default of a depthwise Conv1d.
    `taps[a]` is `conv1d.weight[:, 0, n_taps - 1 - a]` of PyTorch.

    Args:
      width: number of channels.
      n_taps: taps of a channel's filter, the newest token's among them.
      bias: whether there is one.
      n_plain: so many channels, the first ones, pass through no SiLU; the others do (Mamba-2, delta rules). None: no
        channel passes through one.
      axis: logical axis of the channels.
      rngs: stream `params`.
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
        """Outputs of the tokens `(b, t, d)`, or of one `(b, d)`, after those of `history`, and the history after
        them; None: from the first on."""
        y, history = causal_conv_from(history, x, self.taps[...], segment_ids=segment_ids)
        if self.bias is not None:
            y = y + along_last(self.bias[...], y)
        if self.n_plain == 0:
            return jax.nn.silu(y), history
        if self.n_plain < y.shape[-1]:
            y = jnp.concatenate([y[..., : self.n_plain], jax.nn.silu(y[..., self.n_plain :])], axis=-1)
        return y, history
