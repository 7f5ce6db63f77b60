"""The short causal convolution with a SiLU that linear mixers apply to queries, keys and values (Mamba, Mamba-2)."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.layers.causal_conv import causal_conv, causal_conv_step, push_history, uniform_parameter


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
        self, x: Float[Array, "b t d"], *, segment_ids: Int[Array, "b t"] | None = None
    ) -> Float[Array, "b t d"]:
        """All tokens of `x`, from the first on; see `causal_conv`."""
        return self._activate(causal_conv(x, self.taps[...], segment_ids=segment_ids))

    def prefill(
        self, x: Float[Array, "b t d"], history: Float[Array, "b w-1 d"]
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b w-1 d"]]:
        """Outputs of the tokens after those of `history`, and the history after them."""
        return self._activate(causal_conv(x, self.taps[...], history)), push_history(history, x)

    def step(
        self, x_t: Float[Array, "b d"], history: Float[Array, "b w-1 d"]
    ) -> tuple[Float[Array, "b d"], Float[Array, "b w-1 d"]]:
        """One token, and the history after it."""
        y_t, history = causal_conv_step(x_t, self.taps[...], history)
        return self._activate(y_t), history

    def _activate(self, y: Array) -> Array:
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
        if self.n_plain:
            return jnp.concatenate([y[..., : self.n_plain], jax.nn.silu(y[..., self.n_plain :])], axis=-1)
        return jax.nn.silu(y)
