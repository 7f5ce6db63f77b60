"""Multi-head causal softmax attention (Vaswani et al. 2017), the reference point of all recall experiments.

For every head `y_i = sum_{j <= i} softmax_j(q_i . k_j / sqrt(k) + bias_ij) v_j`, with grouped key/value heads
(Ainslie et al. 2023), rotary positions (Su et al. 2021) or ALiBi (Press et al. 2021). The state is the KV
cache: Based, App. E.2, eq. 10, counts `2 d N` entries, ours has `2 g k max_length`, the same where g k = d
and max_length = N.

Deviations from Zoology's attention: biases are off unless asked for, and the weights have no dropout.
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Bool, Float, Int
from jaxzoo.layers.alibi import alibi_bias
from jaxzoo.mixers.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.sharding import on_mesh
from pallas_kernels.sliding_window import sharded_sliding_window_attention, sliding_window_attention
from pallas_kernels.softmax import softmax_attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(MultiHeadConfig):
    """Config of `Attention`. Transformer++ of the Based paper: positions="rotary", rotary_fraction=0.5."""

    max_length: int = 0
    """Tokens that the KV cache holds; 0: the model's, and no cache outside a model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.positions in ("none", "rotary", "alibi")
        self.require("positions", known, "must be 'none', 'rotary' or 'alibi'")
        self.require("max_length", self.max_length >= 0, "must be positive", "or 0 inside a model")

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            d_model=13,
            n_heads=4,
            n_kv_heads=2,
            head_dim=4,
            positions="rotary",
            rotary_fraction=0.5,
            qkv_bias=True,
            out_bias=True,
            max_length=64,
        )

    def with_capacity(self, n_tokens: int) -> Self:
        return dataclasses.replace(self, max_length=n_tokens)

    def flops_per_token(self, length: int) -> float:
        """Projections, and two matmuls of every query with all `length` keys: the dense form computes the
        masked half too."""
        return self.projection_flops + 4.0 * self.n_heads * self.head_width * length


class AttentionState(NamedTuple):
    """KV cache. Slot `p` holds absolute position `p`; unwritten slots must be finite."""

    k: Float[Array, "b s g k"]
    """Keys, rotated to their absolute positions, in the cache's dtype; `s` is max_length."""
    v: Float[Array, "b s g k"]
    """Values, in the cache's dtype."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""


class Attention(MultiHeadMixer):
    """Causal softmax attention over the whole past; `step` and `prefill` cost O(max_length) a token.

    Without ALiBi, `__call__` is `sliding_window_attention` with a window of all tokens: flash attention by cuDNN on
    GPUs, by splash attention or, up to 256 tokens, our kernel on TPUs. `prefill` and `step` are plain XLA.

    A row that runs past the cache (its position + t exceeds max_length) gets NaN outputs from that call on.
    """

    config: AttentionConfig

    def __init__(self, config: AttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, positions)
        bias = self._bias(positions, positions)
        if bias is not None:
            return self._merge(_attend(q, k, v, positions[:, None, :] <= positions[:, :, None], bias))
        attend = on_mesh(sliding_window_attention, sharded_sliding_window_attention, q, k)
        return self._merge(attend(q, k, v, window=max(x.shape[1], 1)))

    def init_state(self, batch_size: int, dtype: DTypeLike = jnp.float32) -> AttentionState:
        """The empty cache, of `config.max_length` slots.

        Raises:
          ValueError: `config.max_length` is 0.
        """
        config = self.config
        config.require("max_length", config.max_length > 0, "must be positive for a KV cache", "set it")
        shape = (batch_size, config.max_length, config.kv_heads, config.head_width)
        return AttentionState(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((batch_size,), jnp.int32))

    def prefill(self, x: Float[Array, "b t d"], state: AttentionState) -> tuple[Float[Array, "b t d"], AttentionState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        t, capacity = x.shape[1], state.k.shape[1]
        if t > capacity:
            raise ValueError(
                f"Attention.prefill: t={t} must be at most the {capacity} slots of the cache; "
                "make the state with a larger max_length"
            )
        positions = state.position[:, None] + jnp.arange(t, dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, positions)
        state = AttentionState(
            k=_write(state.k, k, state.position),
            v=_write(state.v, v, state.position),
            position=state.position + t,
        )
        slots = jnp.arange(capacity, dtype=jnp.int32)[None, :]
        visible = slots[:, None, :] <= positions[:, :, None]
        keys, values = state.k.astype(q.dtype), state.v.astype(q.dtype)
        y = self._merge(_attend(q, keys, values, visible, self._bias(positions, slots)))
        fits = (state.position <= capacity)[:, None, None]
        return jnp.where(fits, y, jnp.nan), state

    def step(self, x_t: Float[Array, "b d"], state: AttentionState) -> tuple[Float[Array, "b d"], AttentionState]:
        y, state = self.prefill(x_t[:, None, :], state)
        return y[:, 0], state

    def _bias(self, queries: Int[Array, "b t"], keys: Int[Array, "b s"]) -> Float[Array, "b h t s"] | None:
        return alibi_bias(self.config.n_heads, queries, keys) if self.config.positions == "alibi" else None


def _attend(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g k"],
    visible: Bool[Array, "b t s"],
    bias: Float[Array, "b h t s"] | None,
) -> Float[Array, "b t h k"]:
    b, t, h, d = q.shape
    g = k.shape[2]
    y_bgrtk, _ = softmax_attention(
        q.reshape(b, t, g, h // g, d).transpose(0, 2, 3, 1, 4),
        k.transpose(0, 2, 1, 3),
        v.transpose(0, 2, 1, 3),
        visible=visible[:, None, None, :, :],
        bias=None if bias is None else bias.reshape(bias.shape[0], g, h // g, *bias.shape[2:]),
        scale=d**-0.5,
    )
    return y_bgrtk.transpose(0, 3, 1, 2, 4).reshape(b, t, h, d)


def _write(cache: Float[Array, "b s g k"], new: Float[Array, "b t g k"], start: Int[Array, "b"]) -> jax.Array:
    """Writes each row's tokens from its own slot `start` on.

    Past the end the update is shifted back over older slots: such a row's outputs are NaN for good.
    """
    update = jax.vmap(lambda row, tokens, slot: jax.lax.dynamic_update_slice_in_dim(row, tokens, slot, axis=0))
    return update(cache, new.astype(cache.dtype), start)
