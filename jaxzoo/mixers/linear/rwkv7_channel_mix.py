"""Channel mixing of RWKV-7 (Peng et al. 2025), as a mixer: an MLP that also sees the previous token.

    y = max((x + (x' - x) . mu) W_k, 0)^2 W_v

with the previous token x'. Unlike the channel mixes of RWKV-4 to 6 it has no gate. Its state is the last input, so it
is a separate mixer in a model's pattern, with `mlp="none"`.

In the authors' code `shift` is `x_k`; `key` and `value` are the same. Initialisation, as in their code, for layer l of
L and channel i of d: mu = 1 - (i / d)^{(1 - l / L)^4}. Deviation: projections start normal; with
`projections="release"`, W_v starts at 0 and W_k orthogonal.

Good at: The MLP of RWKV-7, which also sees the previous token; it recalls nothing by itself.
Paper: Peng et al. 2025 (Goose), https://arxiv.org/abs/2503.14456
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Context
from jaxzoo.mixers.linear.rwkv import RWKVConfig, RWKVMixer, Sums, projection
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV7ChannelMixConfig(RWKVConfig):
    """Config of `RWKV7ChannelMix`."""

    hidden_width: PositiveInt | None = None
    """Hidden units; None: 4 d_model, as in the paper."""

    @property
    def hidden(self) -> int:
        """`hidden_width`, with the default filled in."""
        return self.hidden_width or 4 * self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, hidden_width=23, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the two projections."""
        return 4.0 * self.width * self.hidden


class RWKV7ChannelMix(RWKVMixer):
    """Channel mixing of RWKV-7; parameters `shift` (d,), `key` (d, hidden_width), `value` (hidden_width, d)."""

    config: RWKV7ChannelMixConfig

    def __init__(self, config: RWKV7ChannelMixConfig, *, rngs: nnx.Rngs) -> None:
        d, hidden, axes = config.width, config.hidden, ("embed", "mlp")
        shift = 1 - (np.arange(d) / d) ** ((1 - config.layer_index / config.n_layers) ** 4)
        self.shift: nnx.Param[jax.Array] = parameter(jnp.asarray(shift, jnp.float32), ("embed",), decay=False)
        self.key: nnx.Linear = projection(config, d, hidden, axes=axes, std=config.std, gain=1.0, rngs=rngs)
        self.value: nnx.Linear = projection(config, hidden, d, axes=axes[::-1], std=config.out_std, gain=0.0, rngs=rngs)
        self.config = config

    def _mix(self, x: Float[Array, "*b d"], shifted: Array, sums: Sums, context: Context) -> tuple[Array, Sums]:
        mixed = x + (shifted - x) * along_last(self.shift[...], x)
        return self.value(jnp.square(jax.nn.relu(self.key(mixed)))), sums
