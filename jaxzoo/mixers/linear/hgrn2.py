"""HGRN2 (Qin et al. 2024, arXiv 2404.07904): a gated linear recurrence whose state is expanded by an outer product.

For each head, with a lower bound gamma of the forget gates that increases with depth:

    q, f, v = silu(x W_q), gamma + (1 - gamma) sigmoid(x W_f), x W_i
    S_t = Diag(f_t) S_{t-1} + (1 - f_t) v_t^T        o_t = S_t^T q_t        y = (scale . rms(concat(o_h))) W_O

The keys are tied to the decays, k = 1 - f. The norm is over all heads.

`scaled` divides q by sqrt(k), as the public code (fla) does; the norm undoes it up to its eps. fla's names: `q_proj`,
`f_proj`, `i_proj`, `g_norm.weight` (`norm.scale`), `o_proj` (`out_proj`).

Deviation: the bounds are not trained. In the paper they are the running sum of a softmax over layers, a parameter of
the model, and start at l / L for layer l of L. Here they are fixed to these values, in the buffer `lower_bound`, which
can hold the bounds of a checkpoint. fla's option of short convolutions is left out.

Good at: Text: keys are tied to the forget gates, so that a token writes as much as it forgets.
Paper: Qin et al. 2024, https://arxiv.org/abs/2404.07904
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, NonNegativeInt, PositiveInt
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.variables import Buffer, buffer
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGRN2Config(MixerConfig):
    """Config of `HGRN2`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    n_heads: PositiveInt = 1
    """Heads; the paper's have 128 channels each."""
    key_width: PositiveInt | None = None
    """Total width of queries and of forget gates of all heads; None: d_model."""
    layer_index: NonNegativeInt = 0
    """Index l of the layer, counted from 0; the lower bound is l / L."""
    n_layers: PositiveInt = 1
    """Number L of HGRN2 layers in the model."""
    scaled: bool = False
    """Divides q by the square root of a head's width."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("layer_index", self.layer_index < self.n_layers, f"must be below n_layers={self.n_layers}")
        if self.d_model is not None:
            self.require_divisible("d_model", by="n_heads")
            rule = f"gives {self.keys} channels, which must be a multiple of n_heads={self.n_heads}"
            self.require("key_width", self.keys % self.n_heads == 0, rule)

    @property
    def keys(self) -> int:
        """`key_width`, with the default filled in."""
        return self.key_width or self.width

    @property
    def scanned_as(self) -> MixerConfig:
        return dataclasses.replace(self, layer_index=0, n_layers=1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=8, n_heads=2, key_width=6, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with their values, state update and read."""
        d, k = self.width, self.keys
        return 4.0 * d * (k + d) + 2.0 * min(CHUNK, length) * (k + d) + 4.0 * k * d / self.n_heads


class HGRN2State(NamedTuple):
    """Sums over the past."""

    s: Float[Array, "b h k v"]
    """`S` of the module docstring, float32."""


class HGRN2(Mixer):
    """Linear attention with keys tied to decays; the state has a fixed size, and `step` costs O(k v) per head.

    `q_proj`, `f_proj` (d, key_width), `i_proj` (d, d), `lower_bound` (key_width,), a buffer, `norm.scale` (d,),
    `out_proj` (d, d).
    """

    config: HGRN2Config

    def __init__(self, config: HGRN2Config, *, rngs: nnx.Rngs) -> None:
        d, keys, axes = config.width, config.keys, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, keys, axes=axes, std=config.std, rngs=rngs)
        self.f_proj: nnx.Linear = linear(d, keys, axes=axes, std=config.std, rngs=rngs)
        self.i_proj: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.lower_bound: Buffer = buffer(
            jnp.full((keys,), config.layer_index / config.n_layers, jnp.float32), ("heads",)
        )
        self.norm: GatedNorm = GatedNorm(d, eps=config.norm_eps, axis="heads")
        self.out_proj: nnx.Linear = linear(d, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> HGRN2State:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        heads = (config.n_heads, config.keys // config.n_heads, config.width // config.n_heads)
        return HGRN2State(jnp.zeros((batch_size, *heads), jnp.float32))

    def mix(self, x: Float[Array, "*b d"], state: HGRN2State | None, context: Context) -> tuple[Array, HGRN2State]:
        logits = self.f_proj(x).astype(jnp.float32)
        bound = self.lower_bound[...].reshape((1,) * (x.ndim - 1) + (-1,))
        # log f without a logarithm of 0, and 1 - f without a difference.
        log_decay = jnp.logaddexp(jnp.log(bound), jnp.log1p(-bound) + jax.nn.log_sigmoid(logits))
        k = ((1 - bound) * jax.nn.sigmoid(-logits)).astype(x.dtype)
        q, v = jax.nn.silu(self.q_proj(x)), self.i_proj(x)
        q, k, v, log_decay = (split_heads(y, self.config.n_heads) for y in (q, k, v, log_decay))
        q = q * q.shape[-1] ** -0.5 if self.config.scaled else q
        before = None if state is None else LinearState(state.s, None)
        o, after = linear_attention_from(before, q, k, v, log_decay=log_decay, segment_ids=context.segment_ids)
        return self.out_proj(self.norm(o.reshape(x.shape))), HGRN2State(after.s)
