"""The short causal convolution with a SiLU that linear mixers apply to queries, keys and values (Mamba, Mamba-2)."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.layers.causal_conv import causal_conv_from, uniform_parameter
from jaxzoo.layers.variables import along_last


class SiluConv(nnx.Module):
    """`silu(sum_a taps[a] x_{i-a} + bias)`, channel by channel; the last `n_taps - 1` inputs are its history.

    The first `n_plain` channels have no SiLU. `taps` (n_taps, width), and `bias` (width,) where asked for: uniform
    in +-1/sqrt(n_taps), PyTorch's default of a depthwise Conv1d. `taps[a]` is `conv1d.weight[:, 0, n_taps - 1 - a]`
    of PyTorch.
    """

    def __init__(
        self,
        width: int,
        n_taps: int,
        *,
        bias: bool = False,
        n_plain: int = 0,
        axis: str = "channels",
        rngs: nnx.Rngs,
    ) -> None:
        self.taps: nnx.Param[jax.Array] = uniform_parameter((n_taps, width), n_taps, (None, axis), rngs=rngs)
        self.n_plain: int = n_plain
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
        if self.n_plain:
            return jnp.concatenate([y[..., : self.n_plain], jax.nn.silu(y[..., self.n_plain :])], axis=-1), history
        return jax.nn.silu(y), history
