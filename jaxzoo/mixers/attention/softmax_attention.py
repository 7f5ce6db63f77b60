"""Multi-head causal softmax attention (Vaswani et al. 2017), the baseline of all recall experiments.

    y_i = sum_{j <= i} softmax_j(q_i . k_j / sqrt(k)) v_j

for each head, with grouped key/value heads (Ainslie et al. 2023), rotary positions (Su et al. 2021), xPos (Sun et al.
2022) or ALiBi (Press et al. 2021), which adds a bias to the scores. The state is the KV cache: Based, App. E.2, eq. 10,
counts `2 d N` entries, ours has `2 g k capacity`, the same if g k = d and capacity = N.

Deviations from Zoology's attention: biases are off unless asked for, and the weights have no dropout.

Good at: Recall of anything in the context, at any width; its cache grows with the text.
Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.layers.alibi import alibi_bias
from jaxzoo.layers.linear import linear
from jaxzoo.layers.probe import show_scores
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.parallel.sharding import constrain, on_mesh
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.decode_step import has_window_kernel, window_step
from pallas_kernels.sliding_window import (
    SlidingWindowCache,
    sharded_sliding_window_attention,
    sliding_window_attention,
)
from pallas_kernels.softmax import softmax_attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(MultiHeadConfig):
    """Config of `Attention`. Transformer++ of the Based paper: positions="rotary", rotary_fraction=0.5."""

    promises = Capabilities(growing_state=True, segments=True, sequence_parallel=True)
    size_fields = ("head_dim",)

    output_gate: bool = False
    """Multiplies the output of the heads by the sigmoid of a linear function of the token (Qwen3-Next)."""

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
            qk_norm="rms",
            output_gate=True,
        )

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and of two matmuls of every query with all `length` keys, masked ones included."""
        gate = 2.0 * self.width * self.n_heads * self.head_width * self.output_gate
        return self.projection_flops + gate + 4.0 * self.n_heads * self.head_width * length

    def papers_state_size(self, length: int) -> int:
        """State size of Eq. 10, `2 d N` numbers; the formula ignores key/value heads."""
        return 2 * self.width * length

    def papers_layer_flops(self, length: int, *, mlp: str, mlp_width: int) -> float | None:
        """Table 8, a batch of 1, divided by the N tokens: `3 D^2 + (H H D + H N N)/N + N D + D^2 + 16/3 D^2`.

        H is "the head dimension" (App. C.2; in Table 7 it is the number of heads). Computed as printed: a multiply-add
        counts once; `H H D` has no N; one matmul over the (N, N) scores, not two; SwiGLU has two matrices of 8/3 D, not
        three. The TFLOPs in Zoology's Tables 1 and 4 do not follow Table 8: they agree within 1 % with 6 FLOPs per
        multiply-add (forward and backward), two score matmuls and three matrices.
        """
        del mlp_width
        if mlp != "swiglu":
            return None
        d, n, h = self.width, length, self.head_width
        return 3 * d**2 + h * (h * d + n**2) / n + n * d + d**2 + 16 / 3 * d**2


class AttentionState(NamedTuple):
    """KV cache. Slot `p` holds absolute position `p`; unwritten slots must be finite."""

    k: Float[Array, "b s g k"]
    """Keys, rotated to their absolute positions, in the cache's dtype; `s` is the capacity."""
    v: Float[Array, "b s g k"]
    """Values, in the cache's dtype."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""


class Attention(SteppedByPrefill):
    """Causal softmax attention over the whole past; `step` and `prefill` cost O(capacity) per token.

    Without ALiBi, `__call__` is `sliding_window_attention` with a window of all tokens: flash attention by cuDNN on
    GPUs, by splash attention or, up to 256 tokens, our kernel on TPUs. `prefill` is plain XLA, and so is `step` where
    the kernel of `decode_step`, for which the cache is a ring that is never full, is not verified.

    With `output_gate` also `gate_proj` (d, h k). A row that runs past the cache (its position + t exceeds the capacity)
    gets NaN outputs from that call on.
    """

    config: AttentionConfig

    def __init__(self, config: AttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.output_gate:
            width = config.n_heads * config.head_width
            self.gate_proj: nnx.Linear = linear(config.width, width, axes=("embed", "heads"), std=config.std, rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, positions)
        segment_ids, bias = context.segment_ids, self._bias(positions, positions)
        if bias is not None:
            # If time is sharded, each device gathers all keys for its queries.
            k, v = (constrain(y, "batch", None, "heads", None) for y in (k, v))
            return self._join(x, dense_attention(q, k, v, visible_tokens(positions, segment_ids), bias))
        return self._join(x, causal_attention(q, k, v, segment_ids))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> AttentionState:
        """Initial cache of `capacity` slots.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        return empty_cache(batch_size, capacity, self.config.kv_heads, self.config.head_width, dtype)

    def prefill(
        self, x: Float[Array, "b t d"], state: AttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], AttentionState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the capacity of the cache.
        """
        positions = next_positions(state, x.shape[1])
        q, k, v = self._project(x, positions)
        ring = SlidingWindowCache(*state)
        if x.shape[1] == 1 and self.config.positions != "alibi" and has_window_kernel(ring, q[:, 0], v[:, 0]):
            y, ring = window_step(ring, q[:, 0], k[:, 0], v[:, 0])
            state = AttentionState(*ring)
            return nan_beyond(state, self._join(x, y[:, None])), state
        state = extend_cache(state, k, v)
        bias = self._bias(positions, slots_of(state))
        y = self._join(x, dense_attention(q, *cached(state, q.dtype), visible_slots(state, positions), bias))
        return nan_beyond(state, y), state

    def _join(self, x: Float[Array, "b t d"], y: Float[Array, "b t h k"]) -> Float[Array, "b t d"]:
        """Gates and joins the heads, and projects to the model width."""
        if self.config.output_gate:
            y = y * jax.nn.sigmoid(self.gate_proj(x)).reshape(y.shape)
        return self._merge(y)

    def _bias(self, queries: Int[Array, "b t"], keys: Int[Array, "b s"]) -> Float[Array, "b h t s"] | None:
        return alibi_bias(self.config.n_heads, queries, keys) if self.config.positions == "alibi" else None


def empty_cache(
    batch_size: int, capacity: int | None, n_heads: int, head_dim: int, dtype: DTypeLike, *, block_size: int = 1
) -> AttentionState:
    """The cache before the first token, of `capacity` slots, rounded up to whole blocks.

    Raises:
      ValueError: `capacity` is None or not positive.
    """
    if capacity is None or capacity < 1:
        raise ValueError(
            f"init_state of attention: capacity={capacity} must be positive; it is the number of tokens, prompt and "
            "new ones, that the cache will hold"
        )
    shape = (batch_size, capacity + -capacity % block_size, n_heads, head_dim)
    return AttentionState(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((batch_size,), jnp.int32))


def next_positions(state: Any, t: int) -> Int[Array, "b t"]:
    """Positions of the next `t` tokens of each row, from `state.position` on."""
    return state.position[:, None] + jnp.arange(t, dtype=jnp.int32)[None, :]


def extend_cache(state: AttentionState, k: Float[Array, "b t g k"], v: Float[Array, "b t g k"]) -> AttentionState:
    """Appends `t` tokens to the cache, rounded to its dtype.

    Raises:
      ValueError: `t` exceeds its slots.
    """
    check_fits(k.shape[1], state.k.shape[1])
    keys, values = (write_cache(old, new, state.position) for old, new in ((state.k, k), (state.v, v)))
    return AttentionState(keys, values, state.position + k.shape[1])


def check_fits(t: int, capacity: int) -> None:
    """Raises `ValueError` if `t` tokens exceed the slots of a cache."""
    if t > capacity:
        raise ValueError(
            f"prefill of attention: t={t} must be at most the {capacity} slots of the cache; "
            "make the state with a larger capacity"
        )


def cached(state: AttentionState, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """Keys and values of all slots, `(b, s, g, k)`."""
    return state.k.astype(dtype), state.v.astype(dtype)


def slots_of(state: AttentionState) -> Int[Array, "1 s"]:
    """Positions of the slots: 0, 1, 2, ..."""
    return jnp.arange(state.k.shape[1], dtype=jnp.int32)[None, :]


def visible_slots(state: AttentionState, positions: Int[Array, "b t"]) -> Bool[Array, "b t s"]:
    """Mask of the slots that the token at each position attends to: up to its own."""
    return slots_of(state)[:, None, :] <= positions[:, :, None]


def visible_tokens(positions: Int[Array, "b t"], segment_ids: Int[Array, "b t"] | None) -> Bool[Array, "b t t"]:
    """Mask of the tokens that each token attends to: up to itself, in its document."""
    visible = positions[:, None, :] <= positions[:, :, None]
    if segment_ids is not None:
        visible = visible & (segment_ids[:, None, :] == segment_ids[:, :, None])
    return visible


def nan_beyond(state: Any, y: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Replaces the outputs of rows whose `state.position` exceeds the capacity with NaN."""
    fits = state.position <= state.k.shape[1]
    return jnp.where(fits[:, None, None], y, jnp.nan)


def causal_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g k"],
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t h k"]:
    """Causal softmax attention with grouped heads, by a kernel if one is available."""
    attend = functools.partial(
        on_mesh(sliding_window_attention, sharded_sliding_window_attention, q, k),
        q,
        k,
        window=max(q.shape[1], 1),
        segment_ids=segment_ids,
    )
    show_scores(attend, v)
    return attend(v)


def dense_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g k"],
    visible: Bool[Array, "b t s"],
    bias: Float[Array, "b h t s"] | None = None,
) -> Float[Array, "b t h k"]:
    """Softmax attention with grouped heads to the visible keys, at least one per query."""
    b, t, h, d = q.shape
    g = k.shape[2]
    if k.shape[1] == t:
        show_scores(lambda unit: dense_attention(q, k, unit, visible, bias), v)
    y_bgrtk, _ = softmax_attention(
        q.reshape(b, t, g, h // g, d).transpose(0, 2, 3, 1, 4),
        k.transpose(0, 2, 1, 3),
        v.transpose(0, 2, 1, 3),
        visible=visible[:, None, None, :, :],
        bias=None if bias is None else bias.reshape(bias.shape[0], g, h // g, *bias.shape[2:]),
        scale=d**-0.5,
    )
    return y_bgrtk.transpose(0, 3, 1, 2, 4).reshape(b, t, h, v.shape[3])


def write_cache(cache: Float[Array, "b s g k"], new: Float[Array, "b t g k"], start: Int[Array, "b"]) -> jax.Array:
    """Writes tokens into the cache from slot `start` of each row on.

    If they exceed the slots, the update is shifted back over older slots; outputs of such a row are NaN.
    """
    update = jax.vmap(lambda row, tokens, slot: jax.lax.dynamic_update_slice_in_dim(row, tokens, slot, axis=0))
    return update(cache, new.astype(cache.dtype), start)
