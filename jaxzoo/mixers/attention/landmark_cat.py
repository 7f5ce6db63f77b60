"""Landmark CAT (Li et al. 2025, sec. 5, eq. 1): attention to the own block and to one retrieved by its landmark.

    m_j = (k * F)_{(j + 1) B - 1}        b = argmax_{j < floor(i / B)} q_i . m_j
    y_i = sum_l softmax_l(q_i . k_l / sqrt(k)) v_l        over block b, and over l <= i in the own block

The output of a long filter F over the keys, at the last token of each block, is the block's landmark. A query retrieves
the complete earlier block with the highest landmark score, and attends to that block and to its own by one softmax. The
paper's B, rho and F_k are `block_size`, `rho` and `smoothing`; its F_v is the short filter of the values.

| `smoothing` | F_u per key head |
| --- | --- |
| exponential | `(1 - rho) rho^u`, u >= 0, with a learned or a fixed rho; reaches back beyond the block (Prop. 2) |
| mean | `1 / block_size`, u < block_size (Prop. 1) |
| implicit | a small MLP of u < block_size (`jaxzoo.layers.implicit_filter`) |

The paper prints the first two without their factors, which do not change the argmax. An implicit filter is one block
long; a longer one would need a sum per block that it reaches.

Deviations and choices: equation 1 takes local keys from the smoothed K, but Proposition 1 needs the token's own key. A
causal model can only retrieve complete blocks before its own. Values cannot come from the next token (`F_v = D_{-1}`),
so keys have a short filter too, before the long one, which can be the delay of Theorem 1. All filters act after the
projection. Scores are scaled by k^(-1/2). Each query head retrieves separately. Rotary positions apply to local
attention only; landmarks use queries and keys before rotation, since keys of one block are rotated by different angles.

The gate, which trains the landmarks' filter and queries to retrieve, is our addition. If two scores agree up to
rounding, `prefill` and `step` may retrieve different blocks.

Initialisation (none in the paper): normal projections; rho starts at `e^(-1 / block_size)`, as in Proposition 2; short
filters as in `HeadFilters`; the implicit filter as PyTorch's linear layers.

Good at: Recall in long contexts with a small share of attention's reads; heads of width about B log(t / B).
Paper: Li et al. 2025 (CAT), https://arxiv.org/abs/2407.05591
"""

import dataclasses
import math
from typing import Annotated, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt, Rule
from jaxzoo.layers.causal_conv import push_history
from jaxzoo.layers.head_filters import PARTS, HeadFilters, HeadFiltersConfig
from jaxzoo.layers.implicit_filter import ImplicitFilter
from jaxzoo.layers.linear import split_heads
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import (
    AttentionState,
    empty_cache,
    extend_cache,
    nan_beyond,
    next_positions,
)
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.landmark_attention import Gate, Retrieval, landmark_attention, landmark_attention_from
from jaxzoo.ops.landmarks import LongFilter, extend_landmarks
from jaxzoo.ops.local_attention import keys_per_query
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LandmarkCATConfig(MultiHeadConfig, HeadFiltersConfig):
    """Config of `LandmarkCAT`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none", "rotary", "xpos"] = "none"
    """Position encoding of the scores inside blocks."""
    filter_queries: bool = False
    """Filters queries; equation 1 does not."""
    block_size: PositiveInt = 64
    """Tokens per block."""
    n_retrieved: PositiveInt = 1
    """Blocks that a query retrieves, by best score; equation 1 has one."""
    smoothing: Literal["exponential", "mean", "implicit"] = "exponential"
    """The long filter of the keys (see the table above)."""
    rho: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] | None = None
    """Initial factor per token of exponential smoothing; None: e^(-1 / block_size)."""
    learn_rho: bool = True
    """Learns rho, one per key head."""
    gate: Gate = "straight_through"
    """Factor of the retrieved weights that passes gradients to the landmarks: 1 ("straight_through"), or the block's
    weight in a softmax over all landmarks, which changes the outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rho", self.rho is None or self.smoothing == "exponential", "needs smoothing='exponential'")
        self.require("qk_norm", self.qk_norm == "none", "must be 'none': keys are smoothed instead")

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=9, n_heads=4, n_kv_heads=2, head_dim=4, positions="rotary", qkv_bias=True, block_size=2)

    @property
    def retrieval(self) -> Retrieval:
        """Rule by which the op chooses blocks."""
        return Retrieval(n_blocks=self.n_retrieved, gate=self.gate)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, filters, scores of all landmarks, and two matmuls of every query with the keys of its
        own and the retrieved blocks, masked ones included."""
        h, width, blocks = self.n_heads, self.head_width, (length - 1) // self.block_size
        filters = 2.0 * self.n_taps * width * sum(map(self.heads_of, self.filtered))
        keys = keys_per_query(length, block_size=self.block_size, reach=0)
        keys += min(self.n_retrieved, blocks) * self.block_size
        landmarks = 2.0 * h * width * blocks + 2.0 * self.kv_heads * width * blocks * self.block_size / length
        return self.projection_flops + filters + landmarks + 4.0 * h * width * keys


class LandmarkCATState(NamedTuple):
    """KV cache with landmarks, and the histories of the short filters: the last `n_taps - 1` inputs, oldest first;
    empty, (b, 0, ...), without a filter."""

    k: Float[Array, "b s g k"]
    """Filtered keys, rotated to their absolute positions, in the dtype given; `s` is the capacity in whole blocks."""
    v: Float[Array, "b s g k"]
    """Filtered values, in the same dtype."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""
    landmarks: Float[Array, "b n g k"]
    """Landmarks, float32; for an incomplete block the sum so far, 0 for later blocks."""
    queries: Float[Array, "b w-1 h k"]
    """Queries, in the dtype given."""
    keys: Float[Array, "b w-1 g k"]
    """Keys."""
    values: Float[Array, "b w-1 g k"]
    """Values."""


class LandmarkCAT(SteppedByPrefill):
    """Attention by blocks after short filters; O(head_dim (t / block_size + block_size)) per token and head.

    Parameters: the projections of attention, `head_filters`, and `log_rate` (g,), with `rho = exp(-exp(log_rate))`, or
    the implicit `long_filter`.
    """

    config: LandmarkCATConfig

    def __init__(self, config: LandmarkCATConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        heads = {name: config.heads_of(name) for name in config.filtered}
        self.head_filters: HeadFilters = HeadFilters(
            heads, n_taps=config.n_taps, mixing=False, start=config.filter_init, rngs=rngs
        )
        if config.smoothing == "exponential" and config.learn_rho:
            log_rate = jnp.full((config.kv_heads,), self._initial_log_rate)
            self.log_rate: nnx.Param[jax.Array] = parameter(log_rate, (None,), decay=False)
        if config.smoothing == "implicit":
            self.long_filter: ImplicitFilter = ImplicitFilter(
                config.kv_heads, n_taps=config.block_size, axes=(None,), rngs=rngs
            )

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        ids = context.segment_ids
        parts = self._parts(x)
        q, k, v = (self.head_filters(name, parts[name], segment_ids=ids) for name in PARTS)
        here = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        turned = self._rotated(q, here), self._rotated(k, here, keys=True)
        y = landmark_attention(*turned, v, self._long_filter(), (q, k), ids, retrieval=self.config.retrieval)
        return self._merge(y)

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LandmarkCATState:
        """Initial state with `capacity` slots, rounded up to whole blocks.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        config, size = self.config, self.config.block_size
        cache = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype, block_size=size)
        landmarks = jnp.zeros((batch_size, cache.k.shape[1] // size, *cache.k.shape[2:]), jnp.float32)
        heads = {name: (config.heads_of(name), config.head_width) for name in PARTS}
        history = self.head_filters.empty_histories(batch_size, heads, dtype)
        return LandmarkCATState(*cache, landmarks=landmarks, **history)

    def prefill(
        self, x: Float[Array, "b t d"], state: LandmarkCATState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], LandmarkCATState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Once the tokens of a row exceed the capacity, its outputs are NaN.

        Raises:
          ValueError: `t` exceeds the capacity of the cache.
        """
        before, history, parts = AttentionState(*state[:3]), state._asdict(), self._parts(x)
        q, k, v = (self.head_filters(name, parts[name], history[name]) for name in PARTS)
        positions = next_positions(before, x.shape[1])
        cache = extend_cache(before, self._rotated(k, positions, keys=True), v)
        landmarks = extend_landmarks(state.landmarks, k, self._long_filter(), before.position)
        y = landmark_attention_from(
            self._rotated(q, positions),
            cache.k,
            cache.v,
            landmarks,
            before.position,
            q,
            retrieval=self.config.retrieval,
        )
        after = {name: push_history(history[name], parts[name]) for name in PARTS}
        return nan_beyond(cache, self._merge(y)), LandmarkCATState(*cache, landmarks=landmarks, **after)

    def _parts(self, x: Float[Array, "b t d"]) -> dict[str, jax.Array]:
        """Queries, keys and values by head, before their filters."""
        projections = zip(PARTS, (self.q_proj, self.k_proj, self.v_proj), strict=True)
        return {name: split_heads(project(x), self.config.heads_of(name)) for name, project in projections}

    @property
    def _initial_log_rate(self) -> float:
        """Initial `log(-log rho)`."""
        rho = self.config.rho
        return -math.log(self.config.block_size) if rho is None else math.log(-math.log(rho))

    def _long_filter(self) -> LongFilter:
        """Filter F of the table above."""
        config, size, g = self.config, self.config.block_size, self.config.kv_heads
        if config.smoothing == "mean":
            return LongFilter(jnp.full((size, g), 1 / size), jnp.zeros((g,)))
        if config.smoothing == "implicit":
            return LongFilter(self.long_filter(size), jnp.zeros((g,)))
        log_rate = self.log_rate[...] if config.learn_rho else jnp.full((g,), self._initial_log_rate)
        rate = jnp.exp(log_rate)
        age = jnp.asarray(np.arange(size, dtype=np.float32))[:, None]
        return LongFilter(-jnp.expm1(-rate)[None] * jnp.exp(-rate[None] * age), jnp.exp(-size * rate))
