"""Selective attention (Zoology, sec. 5, eq. 2): attention for selected tokens only; all other outputs are zero.

    y_i = f(u)_i softmax(q_i K^T / sqrt(k)) V W_O      over all keys up to i

f selects queries, not keys. In a hybrid, a few such layers recall.

| `selection` | f(u)_i | parallel cost | causal | streams |
| --- | --- | --- | --- | --- |
| full | 1: plain attention | O(t^2) | yes | yes |
| random | Bernoulli sample | O(t^2) | yes | yes |
| programmatic | 1 if the token id occurred earlier in the document (eq. 3), else 0 | O(t^2) | yes | yes |
| learned | s_i = sigmoid(u_i W) for the k largest of the row, else 0 | O(t k) | no | no |

Learned selection gathers the k queries; no (t, t) array exists. The choice of the k largest depends on the whole row,
so later inputs can switch an output on or off, but influence it in no other way; there is no streaming form. In
training (with `Context.key`) normal noise of standard deviation `noise` is added to the s_i before the comparison, and
the auxiliary loss `excess_selection` is

    l_f = max(0, sum_i s_i - k) / t,     averaged over the rows.

The paper gives neither the noise, nor the weight of the loss, nor the fraction of random selection.

`form="release"` is learned selection as in the released code. In training it selects nothing and computes attention for
all tokens, y_i = s_i (..) + u_i, without noise; otherwise y_i = s_i (..) + u_i for the k largest, and y_i = u_i for the
others. Its loss uses the mean over all rows, max(0, mean s - k / t). With `n_selected=None`, the default, k is sqrt(t),
rounded up as a number of tokens. Its projections have biases: `qkv_bias`, `out_bias`.

Random selection is drawn in each call with a key; without a key it is a fixed function of `seed` and the position in
the document, the same in all rows. Selection that is not learned computes attention for all tokens. The state is a KV
cache and, for programmatic selection, the token ids seen.

Good at: Closing the recall gap of convolutions: attention only for the few tokens that need it.
Paper: Arora et al. 2024 (Zoology), sec. 5, https://arxiv.org/abs/2312.04927
"""

import dataclasses
import math
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import Fraction, NonNegativeFloat, PositiveInt, Seed
from jaxzoo.layers.linear import linear
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import (
    AttentionState,
    cached,
    causal_attention,
    dense_attention,
    empty_cache,
    extend_cache,
    nan_beyond,
    next_positions,
    slots_of,
    visible_slots,
    write_cache,
)
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, Losses
from jaxzoo.ops.segments import position_in_segment, seen_before
from jaxzoo.utils.array_typing import Array, Bool, Float, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveAttentionConfig(MultiHeadConfig):
    """Config of `SelectiveAttention`."""

    positions: Literal["none", "rotary", "xpos"] = "none"
    """Position encoding."""
    selection: Literal["full", "random", "programmatic", "learned"] = "learned"
    """Rule of the selection; see the table of the module docstring."""
    form: Literal["paper", "release"] = "paper"
    """Learned selection as in the paper or as in the released code."""
    n_selected: PositiveInt | None = 256
    """Tokens per row that learned selection selects, the paper's k; None: the square root of the length."""
    noise: NonNegativeFloat = 0.1
    """Standard deviation of the noise that learned selection adds to its scores in training (paper)."""
    excess_weight: NonNegativeFloat = 0.001
    """Weight of the loss of learned selection; the default is the release's."""
    probability: Fraction = 0.125
    """Fraction of tokens that random selection selects; the default is 256 of 2048."""
    seed: Seed = 0
    """Seed of random selection without a key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        paper = self.form == "paper" or self.selection == "learned"
        self.require("form", paper, f"must be 'paper' with selection={self.selection!r}")

    @property
    def learned(self) -> bool:
        """Whether the selection is learned."""
        return self.selection == "learned"

    def count(self, length: int) -> int:
        """Number of tokens that learned selection selects per row."""
        return min(math.ceil(self.expected_count(length)), length)

    def expected_count(self, length: int) -> float:
        """k of the loss: `count` before rounding and clipping to the length."""
        return math.sqrt(length) if self.n_selected is None else self.n_selected

    @classmethod
    def tiny(cls) -> Self:
        heads = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "positions": "rotary"}
        return cls(d_model=9, **heads, qkv_bias=True, out_bias=True, selection="programmatic")

    @property
    def capabilities(self) -> Capabilities:
        honest = not self.learned
        return Capabilities(
            causal=honest,
            streams=honest,
            growing_state=honest,
            segments=honest,
            sequence_parallel=honest,
            needs_tokens=self.selection == "programmatic",
            selects=self.selection != "full",
        )

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"excess_selection": self.excess_weight} if self.learned else {}

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and of two matmuls of the queries with all keys, masked ones included. Learned
        selection projects queries and outputs of selected tokens only; the release trains at the cost of full
        attention."""
        scores = 4.0 * self.n_heads * self.head_width * length
        if not self.learned:
            return self.projection_flops + scores
        keys = 4.0 * self.width * self.head_width * self.kv_heads
        share = self.count(length) / length
        return keys + share * (self.projection_flops - keys + scores) + 2.0 * self.width


class SelectiveAttentionState(NamedTuple):
    """KV cache. Slot `p` holds absolute position `p`; unwritten slots must be finite."""

    k: Float[Array, "b s g k"]
    """Keys, rotated to their absolute positions, in the cache's dtype; `s` is the capacity."""
    v: Float[Array, "b s g k"]
    """Values, in the cache's dtype."""
    tokens: Int[Array, "b s"]
    """Token ids, int32; empty, (b, 0), unless selection is programmatic."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""


class SelectiveAttention(SteppedByPrefill):
    """Causal softmax attention for selected tokens; learned selection selects `n_selected` per row.

    Learned selection has the parameter `select_proj` (d, 1). `step` costs O(capacity) for any selection. A row that
    runs past the cache gets NaN outputs from that call on.
    """

    config: SelectiveAttentionConfig

    def __init__(self, config: SelectiveAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.learned:
            self.select_proj: nnx.Linear = linear(config.width, 1, axes=("embed", None), std=config.std, rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        return self.with_losses(x, context)[0]

    def with_losses(
        self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], Losses]:
        here = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
        if self.config.learned:
            return self._learned(x, here, context.key)
        documents = context.segment_ids
        q, k, v = self._project(x, here)
        y = self._merge(causal_attention(q, k, v, documents))
        if self.config.selection == "programmatic":
            assert context.tokens is not None
            return _where(seen_before(context.tokens, documents), y), {}
        positions = jnp.broadcast_to(here if documents is None else position_in_segment(documents), x.shape[:2])
        return _where(self._selected(positions, context.key), y), {}

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> SelectiveAttentionState:
        """Initial cache of `capacity` slots.

        Raises:
          ValueError: `capacity` is None or not positive, or the selection is learned.
        """
        config = self.config
        config.require("selection", not config.learned, "does not stream", "call the mixer on all tokens at once")
        k, v, position = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype)
        n_tokens = k.shape[1] if config.selection == "programmatic" else 0
        return SelectiveAttentionState(k, v, jnp.zeros((batch_size, n_tokens), jnp.int32), position)

    def prefill(
        self, x: Float[Array, "b t d"], state: SelectiveAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], SelectiveAttentionState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the capacity of the cache.
        """
        cache = AttentionState(state.k, state.v, state.position)
        positions = next_positions(cache, x.shape[1])
        q, k, v = self._project(x, positions)
        cache = extend_cache(cache, k, v)
        tokens, before = state.tokens, slots_of(cache)[:, None, :] < positions[:, :, None]
        if self.config.selection == "programmatic":
            assert context.tokens is not None
            tokens = write_cache(tokens, context.tokens, state.position)
            selected = (before & (tokens[:, None, :] == context.tokens[:, :, None])).any(-1)
        else:
            selected = self._selected(positions, context.key)
        y = self._merge(dense_attention(q, *cached(cache, q.dtype), visible_slots(cache, positions)))
        return nan_beyond(cache, _where(selected, y)), SelectiveAttentionState(cache.k, cache.v, tokens, cache.position)

    def _selected(self, positions: Int[Array, "b t"], key: PRNGKeyArray | None) -> Bool[Array, "b t"]:
        """Full or random selection."""
        config = self.config
        if config.selection == "full":
            return jnp.ones(positions.shape, bool)
        if key is not None:
            return jax.random.bernoulli(key, config.probability, positions.shape)
        fixed = jax.random.key(config.seed)

        def draw(position: jax.Array) -> jax.Array:
            return jax.random.bernoulli(jax.random.fold_in(fixed, position), config.probability)

        return jax.vmap(jax.vmap(draw))(positions)

    def _learned(
        self, x: Float[Array, "b t d"], here: Int[Array, "1 t"], key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "b t d"], Losses]:
        """Learned selection, and its loss."""
        config, (b, t, _) = self.config, x.shape
        scores = jax.nn.sigmoid(self.select_proj(x).astype(jnp.float32))[..., 0]
        excess = jnp.zeros(())
        if scores.size:  # the loss l_f of the module docstring
            allowed = np.float32(config.expected_count(t) / t)
            excess = jax.nn.relu(scores.mean(None if config.form == "release" else 1) - allowed)
            excess = excess if config.form == "release" else excess.mean()
        losses = {"excess_selection": excess}
        k, v = self._keys_and_values(x, here)
        if config.form == "release" and key is not None:
            y = self._merge(causal_attention(self._queries(x, here), k, v))
            return y * scores[..., None].astype(x.dtype) + x, losses
        compared = jax.lax.stop_gradient(scores)
        if config.form == "paper" and key is not None:
            compared = compared + np.float32(config.noise) * jax.random.normal(key, (b, t))
        chosen = jnp.sort(jax.lax.top_k(compared, config.count(t))[1], axis=1)
        q = self._queries(jnp.take_along_axis(x, chosen[..., None], axis=1), chosen)
        y = self._merge(dense_attention(q, k, v, here[:, None, :] <= chosen[:, :, None]))
        y = y * jnp.take_along_axis(scores, chosen, axis=1)[..., None].astype(x.dtype)
        others = x if config.form == "release" else jnp.zeros_like(x)
        return others.at[jnp.arange(b, dtype=jnp.int32)[:, None], chosen].add(y), losses


def _where(selected: Bool[Array, "b t"], y: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    return jnp.where(selected[..., None], y, jnp.zeros_like(y))
