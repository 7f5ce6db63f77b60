"""Convolution-augmented attention, CAT (Li et al. 2025), Definition 1 and sec. 3.1: filters before softmax attention.

    K = (X * F_k) W_k, also for Q and V;     y = softmax(Q K^T / sqrt(k)) V

Queries, keys and values are each convolved in time before attention. One layer then solves recall that needs two layers
of attention: with keys delayed by one token, a query finds the token after its match.

| `filters` | parameters of a filter | equation |
| --- | --- | --- |
| head (1D) | `n_taps` numbers per head | `(F * X)_i = sum_a F_a x_{i-a}` |
| mixing (multi-head) | `n_taps` matrices (h, h) | the heads' embeddings, mixed and convolved |
| maps | `n_taps` matrices (h, h) | no filter on q, k, v: the scores of all heads, convolved along the keys, |
| | | `S'_h(i, j) = sum_{a, g} F[a, g, h] S_g(i, j - a)`, before the softmax |

The paper mentions the last form next to its Table 2 without an equation; that it acts along the keys is our reading. It
stores (t, t) scores of all heads, costs `n_taps h` multiply-adds per score, and has no kernel.

Not specified by the paper: filters act after the projection, which is equivalent for filters of numbers without bias,
and cheaper; with `normalize=True` they act on the input, whose rows are then scaled to length 1 before the projection,
`norm(X * F) W` (Theorem 1), at h times the memory. Scores are scaled by k^(-1/2). Rotary positions are applied after
the filter. With `n_kv_heads`, filters of keys and values mix key/value heads only.

Initialisation (none in the paper): `filter_init` "uniform" is PyTorch's default for convolutions; "delta" starts as
plain attention. Filters of maps always start as "delta".

Good at: Recall of N-grams in one layer, without positions: the filter brings each key to its value.
Paper: Li et al. 2025 (CAT), https://arxiv.org/abs/2407.05591
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.layers.causal_conv import push_history
from jaxzoo.layers.head_filters import PARTS, HeadFilters, HeadFiltersConfig, head_conv, initial_taps
from jaxzoo.layers.linear import split_heads
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
    visible_slots,
    visible_tokens,
)
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.utils.array_typing import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionAugmentedAttentionConfig(MultiHeadConfig, HeadFiltersConfig):
    """Config of `ConvolutionAugmentedAttention`. The paper's width is 3 on recall tasks, 21 in language models."""

    filters: Literal["head", "mixing", "maps"] = "head"
    """Kind of the filters and their input (see the table above)."""
    normalize: bool = False
    """Filters the input, and scales its rows to length 1, before the projection: Theorem 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("positions", self.positions != "alibi", "must be 'none', 'rotary' or 'xpos'")
        self.require("qk_norm", self.qk_norm == "none", "must be 'none': filters mix what it would normalize")
        own = not self.normalize or self.filters == "head"
        self.require("normalize", own, "needs filters='head': it acts on the input, which has no heads to mix")

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=11, n_heads=4, n_kv_heads=2, head_dim=4, filters="mixing", positions="rotary", qkv_bias=True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(growing_state=True, segments=True, sequence_parallel=self.filters != "maps")

    @property
    def filtered(self) -> tuple[str, ...]:
        return () if self.filters == "maps" else super().filtered

    def flops_per_token(self, length: int) -> float:
        """FLOPs as of `Attention`, and of the filters."""
        attention = self.projection_flops + 4.0 * self.n_heads * self.head_width * length
        if self.filters == "maps":
            return attention + 2.0 * self.n_taps * self.n_heads**2 * length
        heads = [self.heads_of(name) for name in self.filtered]
        if self.normalize:
            return attention + 2.0 * self.n_taps * self.width * sum(heads)
        mixed = [n**2 if self.filters == "mixing" else n for n in heads]
        return attention + 2.0 * self.n_taps * self.head_width * sum(mixed)


class ConvolutionAugmentedAttentionState(NamedTuple):
    """KV cache of filtered keys and values, and the histories of the filters: the last `n_taps - 1` inputs, oldest
    first, in the dtype given to `init_state`; empty, (b, 0, ...), without a filter."""

    k: Float[Array, "b s g k"]
    """Filtered keys, rotated to their absolute positions; `s` is the capacity."""
    v: Float[Array, "b s g k"]
    """Filtered values."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""
    queries: Float[Array, "b w-1 h k"]
    """Queries before their filter."""
    keys: Float[Array, "b w-1 g k"]
    """Keys before their filter."""
    values: Float[Array, "b w-1 g k"]
    """Values before their filter."""
    inputs: Float[Array, "b w-1 1 d"]
    """Inputs of the layer, with `normalize`, instead of the three."""


class ConvolutionAugmentedAttention(SteppedByPrefill):
    """Causal softmax attention after short filters; `step` costs O(capacity + n_taps) per channel.

    Parameters: the projections of attention, and `head_filters`, or `map_taps` `(n_taps, h, h)`.
    """

    config: ConvolutionAugmentedAttentionConfig

    def __init__(self, config: ConvolutionAugmentedAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        taps: dict[str, Any] = {"n_taps": config.n_taps, "mixing": config.filters != "head", "rngs": rngs}
        heads = {name: config.heads_of(name) for name in config.filtered}
        self.head_filters: HeadFilters = HeadFilters(heads, start=config.filter_init, **taps)
        if config.filters == "maps":
            self.map_taps: nnx.Param[jax.Array] = initial_taps(config.n_heads, start="delta", **taps)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
        (q, k, v), _ = self._filtered(x, positions, {}, context.segment_ids)
        if self.config.filters != "maps":
            return self._merge(causal_attention(q, k, v, context.segment_ids))
        return self._merge(self._attend_maps(q, k, v, visible_tokens(positions, context.segment_ids)))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> ConvolutionAugmentedAttentionState:
        """Initial cache of `capacity` slots, and histories of zeros.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        config = self.config
        cache = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype)
        heads = {name: (config.heads_of(name), config.head_width) for name in PARTS}
        history, n_inputs = self.head_filters.empty_histories(batch_size, heads, dtype), 0
        if config.normalize:
            history, n_inputs = {name: part[:, :0] for name, part in history.items()}, config.n_taps - 1
        inputs = jnp.zeros((batch_size, n_inputs, 1, config.width), dtype)
        return ConvolutionAugmentedAttentionState(**cache._asdict(), **history, inputs=inputs)

    def prefill(
        self, x: Float[Array, "b t d"], state: ConvolutionAugmentedAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], ConvolutionAugmentedAttentionState]:
        """Attends to the cache and to `x`, whose filtered keys and values are first rounded to the cache's dtype.

        Once the tokens of a row exceed the capacity, its outputs are NaN.

        Raises:
          ValueError: `t` exceeds the capacity of the cache.
        """
        cache, history = AttentionState(*state[:3]), state._asdict()
        positions = next_positions(cache, x.shape[1])
        (q, k, v), after = self._filtered(x, positions, history, None)
        cache = extend_cache(cache, k, v)
        attend = self._attend_maps if self.config.filters == "maps" else dense_attention
        y = self._merge(attend(q, *cached(cache, q.dtype), visible_slots(cache, positions)))
        return nan_beyond(cache, y), state._replace(**cache._asdict(), **after)

    def _filtered(
        self,
        x: Float[Array, "b t d"],
        positions: Int[Array, "b t"],
        history: dict[str, jax.Array],
        segment_ids: Int[Array, "b t"] | None,
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], dict[str, jax.Array]]:
        """Filtered queries, keys (rotated) and values, by head, and the new histories if histories are given."""
        y, after = {}, {}
        for name, project in (("queries", self.q_proj), ("keys", self.k_proj), ("values", self.v_proj)):
            if self.config.normalize:
                y[name] = self._of_unit_rows(name, project, x, history.get("inputs"), segment_ids)
                continue
            inputs = split_heads(project(x), self.config.heads_of(name))
            y[name] = self.head_filters(name, inputs, history.get(name), segment_ids=segment_ids)
            after.update({name: push_history(history[name], inputs)} if history else {})
        if history:
            after["inputs"] = push_history(history["inputs"], x[:, :, None, :])
        q = self._rotated(y["queries"], positions)
        k = self._rotated(y["keys"], positions, keys=True)
        return (q, k, y["values"]), after

    def _of_unit_rows(
        self, name: str, project: nnx.Linear, x: jax.Array, before: jax.Array | None, segment_ids: jax.Array | None
    ) -> Float[Array, "b t h k"]:
        """`norm(X * F) W`: filter and projection columns per head."""
        n = self.config.heads_of(name)
        if name not in self.config.filtered:
            return split_heads(project(_unit_rows(x)), n)
        by_head = lambda x: jnp.broadcast_to(x, (*x.shape[:2], n, x.shape[3]))  # noqa: E731
        before = None if before is None else by_head(before)
        rows = _unit_rows(self.head_filters(name, by_head(x[:, :, None]), before, segment_ids=segment_ids))
        kernel = project.kernel[...].astype(x.dtype).reshape(x.shape[2], n, -1)
        y = jnp.einsum("bthd,dhk->bthk", rows, kernel)
        return y if project.bias is None else y + project.bias[...].astype(x.dtype).reshape(1, 1, n, -1)

    def _attend_maps(
        self,
        q: Float[Array, "b t h k"],
        k: Float[Array, "b s g k"],
        v: Float[Array, "b s g k"],
        visible: Bool[Array, "b t s"],
    ) -> Float[Array, "b t h k"]:
        """Softmax attention with scores convolved along the visible keys, over all heads."""
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2).astype(jnp.float32) for x in (k, v))
        exact = jax.lax.Precision.HIGHEST
        scores = jnp.einsum("bthk,bshk->btsh", q.astype(jnp.float32), k, precision=exact) * q.shape[-1] ** -0.5
        scores = jnp.where(visible[..., None], scores, 0.0)
        b, t, s, h = scores.shape
        mixed = head_conv(scores.reshape(b * t, s, h, 1), self.map_taps[...]).reshape(b, t, s, h)
        weights = jax.nn.softmax(jnp.where(visible[..., None], mixed, -jnp.inf), axis=2)
        return jnp.einsum("btsh,bshk->bthk", weights, v, precision=exact).astype(q.dtype)


def _unit_rows(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Scales rows to length 1; a row of zeros stays zero."""
    rows = x.astype(jnp.float32)
    length_2 = jnp.square(rows).sum(-1, keepdims=True)
    return (rows * jax.lax.rsqrt(jnp.maximum(length_2, 1e-12))).astype(x.dtype)
