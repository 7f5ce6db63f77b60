"""Multi-head latent attention (MLA, DeepSeek-V2 and V3): keys and values of all heads come from one short vector.

    q^h = rows of W_qb rms(W_qa x), split in [q_n | q_r]        [c | k_r] = W_kva x,  c <- rms(c)
    [k_n^h | v^h] = rows of W_kvb c        scores = (q_n . k_n + rotary(q_r) . rotary(k_r)) / sqrt(n + r)

One rotary key k_r serves all heads; y = concat(softmax(scores) v) W_O. The cache holds c and the rotated k_r alone.
With W_kvb = [W_k | W_v] of a head, q_n . k_n = (W_k^T q_n) . c and sum_j p_j v_j = W_v sum_j p_j c_j: `prefill` and
`step` attend to c and never make keys and values; the call, which does, gives the same numbers.

Form: DeepSeek-V3 in transformers 5.24: adjacent pairs rotate, norms have eps 1e-6, the published `q_rank` is 1536,
`kv_rank` 512, `head_dim` and `value_dim` 128, `rope_dim` 64, and YaRN multiplies scores by `score_factor` (0.1 ln 40 +
1)^2 alone: `rotary_scaling` has `temperature` 1. `fla`: flash-linear-attention (bc3b101), which rotates by halves and
has eps 1e-5. The defaults scale with the width: rank of a quarter of it (as DeepSeek-V2-Lite), half a head rotates,
queries have no rank.

State: kv_rank + rope_dim numbers per token, for all heads.

Good at: Recall of attention at a fraction of its cache, which still grows with the text.
Paper: DeepSeek-AI 2024 (DeepSeek-V3), https://arxiv.org/abs/2412.19437
"""

import dataclasses
from typing import Annotated, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt, Rule
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.rotary import rotary
from jaxzoo.layers.rotary_scaling import NO_SCALING, RotaryScaling
from jaxzoo.mixers.attention.softmax_attention import (
    AttentionState,
    cached,
    dense_attention,
    empty_cache,
    extend_cache,
    nan_beyond,
    next_positions,
    visible_slots,
    visible_tokens,
)
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, Mixer, MixerConfig
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(MixerConfig):
    """Config of `LatentAttention`."""

    promises = Capabilities(growing_state=True, segments=True)

    n_heads: PositiveInt = 1
    """Heads."""
    head_dim: PositiveInt | None = None
    """Channels of a head's queries and keys that do not rotate; None: d_model / n_heads."""
    value_dim: PositiveInt | None = None
    """Width of a head's values; None: that of its keys without rotation."""
    rope_dim: PositiveInt | None = None
    """Channels that rotate; None: half of the others, rounded down to an even number."""
    q_rank: PositiveInt | None = None
    """Width of the vector that queries come from; None: the model's, without a norm."""
    kv_rank: PositiveInt | None = None
    """Width of c; None: d_model / 4."""
    rotary_base: Annotated[float, Rule("must be at least 1", 1)] = 10000.0
    """Base of the rotary frequencies."""
    rotary_scaling: RotaryScaling = NO_SCALING
    """Slower rotation, for texts longer than those of training."""
    rotary_interleaved: bool = True
    """Neighbouring channels turn together, not those half the rotary width apart."""
    score_factor: PositiveFloat = 1.0
    """Multiplies the scores."""
    norm_eps: NonNegativeFloat = 1e-6
    """Added to the mean square in the norms of both vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_dim:
            self.require_divisible("d_model", by="n_heads")
        even = self.rope_dim is None or self.rope_dim % 2 == 0
        self.require("rope_dim", even, "must be even")

    @classmethod
    def fla(cls, **fields: Any) -> Self:
        """The layer of flash-linear-attention."""
        return cls(**{"rotary_interleaved": False, "norm_eps": 1e-5, **fields})

    @property
    def still(self) -> int:
        """Head width without rotary channels: `head_dim`, or d_model / n_heads if it is None."""
        return self.head_dim or self.width // self.n_heads

    @property
    def values(self) -> int:
        """`value_dim`, with the default filled in."""
        return self.value_dim or self.still

    @property
    def rotated(self) -> int:
        """`rope_dim`, with the default filled in."""
        return self.rope_dim or max(self.still // 4 * 2, 2)

    @property
    def latent(self) -> int:
        """`kv_rank`, with the default filled in."""
        return self.kv_rank or max(self.width // 4, 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=9, n_heads=3, head_dim=5, value_dim=4, rope_dim=2, q_rank=7, kv_rank=6, score_factor=1.5)

    def flops_per_token(self, length: int) -> float:
        """Projections, keys and values of all heads, and two matmuls of every query with all `length` keys: the masked
        half counts too."""
        d, h, rank = self.width, self.n_heads, self.q_rank
        keys = self.still + self.rotated
        queries = d * h * keys if rank is None else rank * (d + h * keys)
        latent = d * (self.latent + self.rotated) + self.latent * h * (self.still + self.values)
        return 2.0 * (queries + latent + d * h * self.values) + 2.0 * h * length * (keys + self.values)


class LatentAttentionState(NamedTuple):
    """The past. Slot `p` holds absolute position `p`; unwritten slots must be finite."""

    latent: Float[Array, "b s r"]
    """c, normed, in the dtype given; `s` is the capacity."""
    rope: Float[Array, "b s k"]
    """k_r, rotated to its absolute position, in the dtype given."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""


class LatentAttention(Mixer):
    """Causal softmax attention with a compressed cache; `step` costs O(capacity (kv_rank + rope_dim)) per head.

    `q_proj` (d, h (n + r)), or `q_down` (d, q_rank), `q_norm.scale` and `q_up` (q_rank, h (n + r)); `kv_down` (d,
    kv_rank + r), `kv_norm.scale` (kv_rank,), `kv_up` (kv_rank, h (n + v)), `out_proj` (h v, d): head-major columns. A
    row that runs past the cache gets NaN outputs from that call on.
    """

    config: LatentAttentionConfig

    def __init__(self, config: LatentAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, h, r, std = config.width, config.n_heads, config.latent, config.std
        queries, inward, down = h * (config.still + config.rotated), ("embed", "heads"), ("embed", None)
        if config.q_rank is None:
            self.q_proj: nnx.Linear = linear(d, queries, axes=inward, std=std, rngs=rngs)
        else:
            self.q_down: nnx.Linear = linear(d, config.q_rank, axes=down, std=std, rngs=rngs)
            self.q_norm: GatedNorm = GatedNorm(config.q_rank, eps=config.norm_eps)
            self.q_up: nnx.Linear = linear(config.q_rank, queries, axes=(None, "heads"), std=std, rngs=rngs)
        self.kv_down: nnx.Linear = linear(d, r + config.rotated, axes=down, std=std, rngs=rngs)
        self.kv_norm: GatedNorm = GatedNorm(r, eps=config.norm_eps)
        self.kv_up: nnx.Linear = linear(r, h * (config.still + config.values), axes=(None, "heads"), std=std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(h * config.values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        here, still = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :], self.config.still
        q_n, q_r, c, k_r = self._project(x, here)
        kv = split_heads(self.kv_up(c), self.config.n_heads)
        k_r = jnp.broadcast_to(k_r[:, :, None], (*q_r.shape[:3], k_r.shape[-1]))
        q, k = jnp.concatenate([q_n, q_r], axis=-1), jnp.concatenate([kv[..., :still], k_r], axis=-1)
        return self._merge(dense_attention(q, k, kv[..., still:], visible_tokens(here, context.segment_ids)))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LatentAttentionState:
        """The empty cache, of `capacity` slots.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        latent, _, position = empty_cache(batch_size, capacity, 1, self.config.latent, dtype)
        rope = jnp.zeros((*latent.shape[:2], self.config.rotated), dtype)
        return LatentAttentionState(latent[:, :, 0], rope, position)

    def prefill(
        self, x: Float[Array, "b t d"], state: LatentAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], LatentAttentionState]:
        """Attends to the cache and to `x`, whose c and k_r are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        config, still = self.config, self.config.still
        cache = AttentionState(state.latent[:, :, None], state.rope[:, :, None], state.position)
        positions = next_positions(cache, x.shape[1])
        q_n, q_r, c, k_r = self._project(x, positions)
        cache = extend_cache(cache, c[:, :, None], k_r[:, :, None])
        up = split_heads(self.kv_up.kernel[...].astype(x.dtype), config.n_heads)
        q = jnp.concatenate([jnp.einsum("bthk,rhk->bthr", q_n, up[..., :still]), q_r], axis=-1)
        q = q * (q.shape[-1] / (still + config.rotated)) ** 0.5  # dense_attention divides by the root of this width
        latent, rope = cached(cache, x.dtype)
        keys = jnp.concatenate([latent, rope], axis=-1)
        y = dense_attention(q, keys, latent, visible_slots(cache, positions))
        y = nan_beyond(cache, self._merge(jnp.einsum("bthr,rhv->bthv", y, up[..., still:])))
        return y, LatentAttentionState(cache.k[:, :, 0], cache.v[:, :, 0], cache.position)

    def step(
        self, x_t: Float[Array, "b d"], state: LatentAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], LatentAttentionState]:
        """`prefill` of one token."""
        y, state = self.prefill(x_t[:, None], state)
        return y[:, 0], state

    def _project(self, x: Float[Array, "b t d"], positions: Int[Array, "b t"]) -> tuple[jax.Array, ...]:
        """q_n and q_r `(b, t, h, .)`, c and k_r `(b, t, .)`; scores are scaled by q."""
        config = self.config
        q = self.q_proj(x) if config.q_rank is None else self.q_up(self.q_norm(self.q_down(x)))
        q, down = split_heads(q, config.n_heads) * config.score_factor, self.kv_down(x)
        turn = {
            "base": config.rotary_base,
            "scaling": config.rotary_scaling,
            "interleaved": config.rotary_interleaved,
        }
        q_r = rotary(q[..., config.still :], positions, **turn)
        k_r = rotary(down[:, :, None, config.latent :], positions, **turn)[:, :, 0]
        return q[..., : config.still], q_r, self.kv_norm(down[..., : config.latent]), k_r

    def _merge(self, y: Float[Array, "b t h v"]) -> Float[Array, "b t d"]:
        return self.out_proj(y.reshape(*y.shape[:2], self.config.n_heads * self.config.values))
