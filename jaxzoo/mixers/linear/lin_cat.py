"""LinCAT (CAT, Li et al. 2025, sec. 6.1): convolution-augmented linear attention.

Queries, keys and values are filtered as in `ConvolutionAugmentedAttention`; linear attention by a feature map replaces
the softmax:

    y_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j / (sum_{j <= i} phi(q_i) . phi(k_j) + eps),
    q = (X * F_q) W_q, also for k and v, with one filter of numbers per head, or of matrices that mix the heads

The paper does not specify the map; any map of `jaxzoo/mixers/linear/feature_map.py` can be used, by default ELU + 1.
The state is the two sums of linear attention and three short histories.

Deviations and initialisation as in `ConvolutionAugmentedAttention` and `LinearAttention`. No rotary positions.

Good at: The recall of linear attention with one layer instead of two.
Paper: Li et al. 2025 (CAT), https://arxiv.org/abs/2407.05591
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.causal_conv import push_history
from jaxzoo.layers.head_filters import PARTS, HeadFilters, HeadFiltersConfig
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.mixers.base import Capabilities, Context, Mixer
from jaxzoo.mixers.linear.feature_map import FeatureMapConfig, QueryKeyFeatures
from jaxzoo.ops.linear_attention import CHUNK, PIECE, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinCATConfig(FeatureMapConfig, HeadFiltersConfig):
    """Config of `LinCAT`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    filters: Literal["head", "mixing"] = "head"
    """Taps are one number per head, or matrices that mix the heads."""
    head_dim: PositiveInt | None = None
    """Width of a head's values; None: d_model / n_heads."""
    eps: NonNegativeFloat = 1e-12
    """Added to the denominator."""
    normalize: bool = True
    """Divides by the sum of the weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_dim:
            self.require_divisible("d_model", by="n_heads")

    @property
    def value_width(self) -> int:
        """Width of a head's values, with the default filled in."""
        return self.head_dim or self.width // self.n_heads

    @property
    def part_widths(self) -> dict[str, int]:
        """Width of a head of queries, keys and values."""
        return {"queries": self.feature_dim, "keys": self.feature_dim, "values": self.value_width}

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=10, n_heads=2, feature_dim=5, head_dim=3, filters="mixing")

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, filters, the feature map, and sums as in `LinearAttention`."""
        h, f, v = self.n_heads, self.width_of_features, self.value_width
        filtered = sum(self.part_widths[name] for name in self.filtered)
        convolutions = 2.0 * self.n_taps * filtered * (h**2 if self.filters == "mixing" else h)
        projections = 2.0 * self.width * h * (2 * self.feature_dim + 2 * v)
        chunk = min(CHUNK, -(-length // PIECE) * PIECE)
        padding = -(-length // chunk) * chunk / length
        sums = 2.0 * h * f * (2 * v + self.normalize) * (length > CHUNK)
        return projections + convolutions + self.map_flops + padding * (2.0 * h * chunk * (self.score_width + v) + sums)


class LinCATState(NamedTuple):
    """Sums over the past, and the histories of the filters: the last `n_taps - 1` inputs, oldest first, in the dtype
    given to `init_state`; empty, (b, 0, h, .), without a filter."""

    s: Float[Array, "b h f v"]
    """Sum of `phi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """Sum of `phi(k_j)`, float32; empty, (b, h, 0), without normalisation."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""
    queries: Float[Array, "b w-1 h k"]
    """Queries."""
    keys: Float[Array, "b w-1 h k"]
    """Keys."""
    values: Float[Array, "b w-1 h v"]
    """Values."""


class LinCAT(Mixer):
    """Linear attention after short filters; the state has a fixed size, and `step` costs O(f v + n_taps) per head.

    `q_proj` and `k_proj` (d, h k), `v_proj` (d, h v), `out_proj` (h v, d): head-major columns; `head_filters`;
    `features` holds the parameters of the feature map.
    """

    config: LinCATConfig

    def __init__(self, config: LinCATConfig, *, rngs: nnx.Rngs) -> None:
        d, std, h, axes = config.width, config.std, config.n_heads, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, h * config.value_width, axes=axes, std=std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(
            h * config.value_width, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs
        )
        self.head_filters: HeadFilters = HeadFilters(
            dict.fromkeys(config.filtered, h),
            n_taps=config.n_taps,
            mixing=config.filters == "mixing",
            start=config.filter_init,
            rngs=rngs,
        )
        self.features: QueryKeyFeatures = QueryKeyFeatures(config, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LinCATState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        s = jnp.zeros((batch_size, config.n_heads, config.width_of_features, config.value_width), jnp.float32)
        z = jnp.zeros((*s.shape[:2], s.shape[2] if config.normalize else 0), jnp.float32)
        heads = {name: (config.n_heads, width) for name, width in config.part_widths.items()}
        history = self.head_filters.empty_histories(batch_size, heads, dtype)
        return LinCATState(s, z, jnp.zeros((batch_size,), jnp.int32), **history)

    def mix(self, x: Float[Array, "*b d"], state: LinCATState | None, context: Context) -> tuple[Array, LinCATState]:
        config, tokens = self.config, x[:, None] if x.ndim == 2 else x
        before = self.init_state(x.shape[0], dtype=x.dtype) if state is None else state
        projections = zip(PARTS, (self.q_proj, self.k_proj, self.v_proj), strict=True)
        parts = {name: split_heads(project(tokens), config.n_heads) for name, project in projections}
        histories = before._asdict()
        past, ids = {} if state is None else histories, context.segment_ids
        filtered = {name: self.head_filters(name, parts[name], past.get(name), segment_ids=ids) for name in PARTS}
        position = jnp.zeros((1,), jnp.int32) if state is None else state.position
        positions = position[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        q, k, squares = self.features(filtered["queries"], filtered["keys"], positions, shifted=config.normalize)
        v = filtered["values"]
        if x.ndim == 2:
            q, k, v = (part[:, 0] for part in (q, k, v))
        sums = None if state is None else LinearState(state.s, state.z if config.normalize else None)
        options = {"normalize": config.normalize, "eps": config.eps, "squares": squares, "segment_ids": ids}
        y, sums = linear_attention_from(sums, q, k, v, **options)
        after = {name: push_history(histories[name], parts[name]) for name in PARTS}
        after.update(s=sums.s, z=before.z if sums.z is None else sums.z, position=position + tokens.shape[1])
        return self.out_proj(y.reshape(*x.shape[:-1], config.n_heads * config.value_width)), before._replace(**after)
