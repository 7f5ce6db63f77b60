"""Linear attention by a feature map (Katharopoulos et al. 2020, eqs. 5 and 9): the maps of Based, Fig. 3.

For each head, with a feature map `phi` of queries and keys:

    y_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j / (sum_{j <= i} phi(q_i) . phi(k_j) + eps)

then the output projection; no biases. The state is the sums of `phi(k_j) v_j^T` and of `phi(k_j)`.
`jaxzoo/mixers/linear/feature_map.py` lists the maps, their options and deviations. They include Based's Taylor map,
which `TaylorLinearAttention` computes faster.

If all weights of a token are 0 (relu, square, cosformer, rebased), its output is 0. The signed maps, identity and
all_poly, are normalised like the others, as published: the denominator can come near 0, where outputs and gradients
explode; `normalize=False` does not divide.

`decay` and `output_scaling` are options of Based, App. C, used in its Table 6; see
`TaylorLinearAttention`. Both the sum and the denominator decay.

Good at: Comparison of feature maps: recall grows with the state that a map gives.
Paper: Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236
"""

import dataclasses
from typing import Annotated, Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt, Rule
from jaxzoo.layers.decay import head_decay
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.mixers.base import Capabilities, Context, Mixer
from jaxzoo.mixers.linear.feature_map import FeatureMapConfig, QueryKeyFeatures
from jaxzoo.ops.linear_attention import (
    CHUNK,
    PIECE,
    LinearState,
    bidirectional_linear_attention,
    empty_state,
    linear_attention_from,
)
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(FeatureMapConfig):
    """Config of `LinearAttention`."""

    size_fields = ("feature_dim", "head_dim")

    head_dim: PositiveInt | None = None
    """Width of a head's values; None: d_model / n_heads."""
    eps: NonNegativeFloat = 1e-12
    """Added to the denominator; the default is the Based release's."""
    normalize: bool = True
    """Divides by the sum of the weights."""
    causal: bool = True
    """False: every token sees all tokens; no streaming, no packed documents."""
    output_scaling: bool = False
    """Scales each head's output by a learned linear function of the token (Based, App. C)."""
    decay: bool = False
    """Decays head h by 1 - 2^(decay_const - h) a token, h counted from 0 (Based, App. C)."""
    decay_const: Annotated[float, Rule("must be in [-20, -1]", -20, -1)] = -5.0
    """Exponent of the fastest decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("decay", self.causal or not self.decay, "needs causal=True", "a decay looks back")
        if not self.head_dim:
            self.require_divisible("d_model", by="n_heads")

    @classmethod
    def rebased(cls, **fields: Any) -> Self:
        """ReBased (Aksenov et al. 2024), as released (corl-team/rebased 2dc269e): `(q . k)^2` of queries and keys after
        a LayerNorm each, over all heads together; eps 1e-12."""
        released = {"feature_map": "rebased", "qk_norm": "all_heads", "qk_affine": "scale_and_shift", "eps": 1e-12}
        return cls(**{**released, **fields})

    @classmethod
    def rebased_fla(cls, **fields: Any) -> Self:
        """ReBased in flash-linear-attention (bc3b101): each head normalized separately, with one gamma and one beta for
        queries and keys of all heads; eps 1e-5 (its op alone: 1e-6)."""
        return cls.rebased(**{"qk_norm": "head", "qk_affine": "shared", "eps": 1e-5, **fields})

    @property
    def value_width(self) -> int:
        """Width of a head's values, with the default filled in."""
        return self.head_dim or self.width // self.n_heads

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(causal=self.causal, streams=self.causal, segments=self.causal, sequence_parallel=True)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=10, n_heads=2, feature_dim=5, head_dim=3, feature_map="cosformer", n_positions=40)

    def papers_state_size(self, length: int) -> int | None:
        """Eq. 8: `(d + 1) f` for f features and one head of width d; h heads have h normalisers: `(d + h) f`. None
        without a state."""
        del length
        return (self.width + 1) * self.width_of_features if self.causal else None

    def flops_per_token(self, length: int) -> float:
        """Projections, matmuls of the feature map, and update and read of the sums of each head. If causal, the
        quadratic form over whole chunks, the padding of the last one included, and the sums past one chunk only."""
        h, k, v, f = self.n_heads, self.feature_dim, self.value_width, self.width_of_features
        projections = 2.0 * self.width * h * (2 * k + 2 * v + self.output_scaling) + self.map_flops
        sums = 2.0 * h * f * (2 * v + self.normalize)
        if not self.causal:
            return projections + sums
        chunk = min(CHUNK, -(-length // PIECE) * PIECE)
        padding = -(-length // chunk) * chunk / length
        within = 2.0 * h * chunk * (self.score_width + v)
        return projections + padding * (within + sums * (length > CHUNK))


class LinearAttentionState(NamedTuple):
    """Sums over the past."""

    s: Float[Array, "b h f v"]
    """Sum of `phi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """Sum of `phi(k_j)`, float32; empty, (b, h, 0), without normalisation."""


class PositionedLinearAttentionState(NamedTuple):
    """Sums over the past and the position, for cosformer."""

    s: Float[Array, "b h f v"]
    """Sum of `phi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """Sum of `phi(k_j)`, float32; empty, (b, h, 0), without normalisation."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""


AnyState = LinearAttentionState | PositionedLinearAttentionState


class LinearAttention(Mixer):
    """Linear attention; the state has a fixed size, and `step` costs O(f v) per head.

    `q_proj` and `k_proj` (d, h k), `v_proj` (d, h v), `out_proj` (h v, d): head-major columns; with `output_scaling`
    also `scale_proj` (d, h). `features` holds the parameters of the feature map.
    """

    config: LinearAttentionConfig

    def __init__(self, config: LinearAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, std, h, axes = config.width, config.std, config.n_heads, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, h * config.value_width, axes=axes, std=std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(
            h * config.value_width, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs
        )
        self.features: QueryKeyFeatures = QueryKeyFeatures(config, rngs=rngs)
        if config.output_scaling:
            self.scale_proj: nnx.Linear = linear(d, h, axes=axes, std=std, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> AnyState:
        """Initial state: zeros; sums are float32 for any `dtype`.

        Raises:
          ValueError: the mixer is not causal.
        """
        config = self.config
        config.require("causal", config.causal, "does not stream", "call the mixer on all tokens at once")
        widths = config.n_heads, config.width_of_features, config.value_width
        sums = empty_state(batch_size, *widths, normalize=config.normalize)
        return self._state(sums, jnp.zeros((batch_size,), jnp.int32))

    def mix(self, x: Float[Array, "*b d"], state: AnyState | None, context: Context) -> tuple[Array, AnyState | None]:
        config, tokens, log_decay = self.config, x[:, None] if x.ndim == 2 else x, None
        # Documents do not restart positions: only distances matter, and documents are contiguous.
        position = state.position if isinstance(state, PositionedLinearAttentionState) else jnp.zeros((1,), jnp.int32)
        ahead = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        places = position[:, None] + ahead
        q, k, v = (split_heads(project(tokens), config.n_heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        # A factor of a query cancels only with normalisation.
        q, k, squares = self.features(q, k, places, shifted=config.normalize)
        if not config.causal:
            y = bidirectional_linear_attention(q, k, v, normalize=config.normalize, eps=config.eps)
            return self._merge(x, y), None
        if x.ndim == 2:
            q, k, v = (part[:, 0] for part in (q, k, v))
        if config.decay:
            log_decay = jnp.asarray(np.log(head_decay(config.decay_const, config.n_heads)), jnp.float32)
        sums = None if state is None else LinearState(state.s, state.z if config.normalize else None)
        options = {"normalize": config.normalize, "eps": config.eps, "log_decay": log_decay, "squares": squares}
        y, after = linear_attention_from(sums, q, k, v, **options, segment_ids=context.segment_ids)
        return self._merge(x, y), self._state(after, position + tokens.shape[1])

    def _state(self, sums: LinearState, position: Int[Array, "#b"]) -> AnyState:
        """State with the given sums and position."""
        z = jnp.zeros((*sums.s.shape[:2], 0), jnp.float32) if sums.z is None else sums.z
        if self.config.feature_map == "cosformer":
            return PositionedLinearAttentionState(sums.s, z, position)
        return LinearAttentionState(sums.s, z)

    def _merge(self, x: Float[Array, "... d"], y: Float[Array, "... h v"]) -> Float[Array, "... d"]:
        """Scales and joins the heads, and projects to the model width."""
        if self.config.output_scaling:
            y = y * self.scale_proj(x)[..., None]
        return self.out_proj(y.reshape(*x.shape[:-1], self.config.n_heads * self.config.value_width))
