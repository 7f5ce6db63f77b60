"""Landmark CAT (Li et al. 2025, sec. 5, eq. 1): attention to the token's own block and to one that a landmark
retrieves.

    m_j = (k * F)_{(j + 1) B - 1}        b = argmax_{j < floor(i / B)} q_i . m_j
    y_i = sum_l softmax_l(q_i . k_l / sqrt(k)) v_l        over block b, and over l <= i in the own block

A long filter F over the keys, read every B tokens, gives each block a landmark. A query retrieves the complete block
before its own whose landmark it meets best, and attends, by one softmax, to that block and to its own. The paper's B,
rho and F_k are `block_size`, `rho` and `smoothing`; its F_v is the short filter of the values.

| `smoothing` | F_u, of each head of keys |
| --- | --- |
| exponential | `(1 - rho) rho^u`, u >= 0, with a learned or a fixed rho; reaches back beyond the block (Prop. 2) |
| mean | `1 / block_size`, u < block_size (Prop. 1) |
| implicit | a small MLP of u < block_size (`jaxzoo.layers.implicit_filter`) |

The paper prints the first two without their factors, which no argmax sees. An implicit filter ends with its block: a
longer one would keep a sum a block that it reaches.

Where the paper leaves a choice. Equation 1 prints local keys from the smoothed K, with which Proposition 1 does not
hold: it needs the token itself among the keys. A causal model retrieves complete blocks before the own one alone.
Values cannot come from the next token (`F_v = D_{-1}`), so keys have a short filter too, which can hold the delay
instead (Theorem 1's key delay); it comes before the long one. All filters act after the projection. The scale of the
scores is k^(-1/2). Each query head retrieves for itself. Rotary positions turn what local attention sees; landmarks are
made, and met, before rotation, since keys of one block stand at different angles.

The gate, by which the landmarks' filter and the queries learn to retrieve, is ours. Where two scores agree up to
rounding, `prefill` and `step` may retrieve different blocks, whose outputs differ.

Initialisation: the paper prints none. Projections are normal; rho starts at `e^(-1 / block_size)`, as in Proposition 2;
short filters as in `HeadFilters`; the implicit filter as in PyTorch's default for its linear maps.

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
    """How scores inside blocks learn of positions."""
    filter_queries: bool = False
    """Filters queries; equation 1 does not."""
    block_size: PositiveInt = 64
    """Tokens of a block, which have one landmark."""
    n_retrieved: PositiveInt = 1
    """Blocks that a query retrieves, of the best scores; equation 1 has one."""
    smoothing: Literal["exponential", "mean", "implicit"] = "exponential"
    """The long filter of the keys (see the table above)."""
    rho: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] | None = None
    """Initial factor per token of exponential smoothing; None: e^(-1 / block_size)."""
    learn_rho: bool = True
    """rho is learned, one for each head of keys."""
    gate: Gate = "straight_through"
    """How gradients reach the landmarks: by a factor of the retrieved weights that is 1 ("straight_through"), or that
    is the block's share in a softmax over all landmarks, with which outputs are no longer those of equation 1."""

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
        """Projections, filters, every query with all landmarks, and two matmuls of it with the keys of its own block
        and of the retrieved ones, masked ones included."""
        h, width, blocks = self.n_heads, self.head_width, (length - 1) // self.block_size
        filters = 2.0 * self.n_taps * width * sum(map(self.heads_of, self.filtered))
        keys = keys_per_query(length, block_size=self.block_size, reach=0)
        keys += min(self.n_retrieved, blocks) * self.block_size
        landmarks = 2.0 * h * width * blocks + 2.0 * self.kv_heads * width * blocks * self.block_size / length
        return self.projection_flops + filters + landmarks + 4.0 * h * width * keys


class LandmarkCATState(NamedTuple):
    """The past by blocks, and what the short filters still reach: the last `n_taps - 1` of each part before its filter,
    oldest first; none, (b, 0, ...), of a part without one."""

    k: Float[Array, "b s g k"]
    """Filtered keys, rotated to their absolute positions, in the dtype given; `s` is the capacity in whole blocks."""
    v: Float[Array, "b s g k"]
    """Filtered values, likewise."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""
    landmarks: Float[Array, "b n g k"]
    """Landmarks, float32; of a block that is not complete the sum so far, and 0 after it."""
    queries: Float[Array, "b w-1 h k"]
    """Queries, in the dtype given."""
    keys: Float[Array, "b w-1 g k"]
    """Keys."""
    values: Float[Array, "b w-1 g k"]
    """Values."""


class LandmarkCAT(SteppedByPrefill):
    """Attention by blocks after short filters; O(head_dim (t / block_size + block_size)) per token and head.

    Beside the projections of attention and `head_filters`: `log_rate` (g,), with `rho = exp(-exp(log_rate))`, or
    `long_filter`, the implicit one.
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
        """The empty state, of `capacity` slots, rounded up to whole blocks.

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

        A row that runs past the cache gets NaN outputs from that call on.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
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
        """`log(-log rho)` of the config."""
        rho = self.config.rho
        return -math.log(self.config.block_size) if rho is None else math.log(-math.log(rho))

    def _long_filter(self) -> LongFilter:
        """F of the table above."""
        config, size, g = self.config, self.config.block_size, self.config.kv_heads
        if config.smoothing == "mean":
            return LongFilter(jnp.full((size, g), 1 / size), jnp.zeros((g,)))
        if config.smoothing == "implicit":
            return LongFilter(self.long_filter(size), jnp.zeros((g,)))
        log_rate = self.log_rate[...] if config.learn_rho else jnp.full((g,), self._initial_log_rate)
        rate = jnp.exp(log_rate)
        age = jnp.asarray(np.arange(size, dtype=np.float32))[:, None]
        return LongFilter(-jnp.expm1(-rate)[None] * jnp.exp(-rate[None] * age), jnp.exp(-size * rate))
