"""Linear attention with a fixed feature map (Katharopoulos et al. 2020, eqs. 5 and 9): the maps of Based, Fig. 3.

For every head, with a feature map `phi` of its queries and keys:

    y_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j / (sum_{j <= i} phi(q_i) . phi(k_j) + eps)

then the output projection; no biases. The state is the sums of `phi(k_j) v_j^T` and of `phi(k_j)`. Based's own map, the
Taylor series, has a mixer to itself: `TaylorLinearAttention`.

| `feature_map` | phi(x) | features | of |
| --- | --- | --- | --- |
| relu | max(x, 0) | k | Kasai et al. 2021 |
| pos_elu | ELU(x) + 1 | k | Katharopoulos et al. 2020 |
| square | x^2 (a release divides by sqrt 2, which cancels) | k | Based, Fig. 3 |
| identity | x | k | Based, Fig. 3 |
| cosformer | relu(x) times cosine and sine of the position | 2 k | Qin et al. 2022 |
| performer | positive random features | `n_features` | Choromanski et al. 2021 |
| exp | exp(x) | k | |
| softmax | softmax over the channels of a token | k | Zhang et al. 2024, unlearned, without its mirrored half |

Where every weight of a token is 0 (relu, square, cosformer), its output is 0. The signed map, identity, is normalised
like the others, as published: its denominator may come near 0, where outputs and gradients explode; `normalize=False`
takes the sum as it is.

Deviations. cosformer: the released code divides positions by the length of the current call, so that one more token
changes all features, and nothing can stream; ours divides by a fixed `n_positions`. performer: W is drawn once, and
stays. The Zoology release leaves its rows with a length of at most 1; ours have the lengths of Gaussian vectors, as in
the paper. Of the stabilisers of the authors' code we keep the shift of queries, and drop that of keys, which cannot
stream (`jaxzoo/layers/feature_maps.py`), and the number added to every feature. relu: the Zoology release clamps at
1e-12, we at 0.
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.checked import NonNegativeFloat, NonNegativeInt, PositiveInt
from jaxzoo.layers.feature_maps import (
    PLAIN_MAPS,
    cosformer_features,
    exp_features,
    orthogonal_gaussian,
    performer_features,
)
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import buffer
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, Inherited, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, PIECE, LinearState, linear_attention, linear_attention_step

FeatureMap = Literal["relu", "pos_elu", "square", "identity", "cosformer", "performer", "exp", "softmax"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(MixerConfig):
    """Config of `LinearAttention`."""

    n_heads: PositiveInt = 1
    """Heads."""
    feature_dim: PositiveInt = 16
    """Width of a head's queries and keys before the feature map."""
    head_dim: NonNegativeInt = 0
    """Width of a head's values; 0: d_model / n_heads."""
    feature_map: FeatureMap = "pos_elu"
    """phi; the table of the module docstring."""
    n_features: NonNegativeInt = 0
    """Random features of performer, the rows of W; 0: feature_dim, as in Based, Table 6."""
    n_positions: PositiveInt | None = None
    """Tokens in a quarter turn of cosformer: the longest distance with a positive weight; None: the model's length."""
    eps: NonNegativeFloat = 1e-12
    """Added to the denominator; the default is that of the Based release."""
    normalize: bool = True
    """Divides by the sum of the weights."""
    causal: bool = True
    """False: all tokens see all tokens; no streaming, no packed documents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, unset, name in (("n_features", 0, "performer"), ("n_positions", None, "cosformer")):
            read = self.feature_map == name or getattr(self, field) == unset
            self.require(field, read, f"is read by feature_map='{name}' only", f"leave it at {unset}")
        if not self.head_dim and self.d_model is not None:
            self.require_divisible("d_model", by="n_heads")

    @property
    def value_width(self) -> int:
        """Width of a head's values, with the default filled in."""
        return self.head_dim or self.width // self.n_heads

    @property
    def width_of_features(self) -> int:
        """Features of a head, after the feature map."""
        if self.feature_map == "performer":
            return self.n_features or self.feature_dim
        return 2 * self.feature_dim if self.feature_map == "cosformer" else self.feature_dim

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(causal=self.causal, streams=self.causal, segments=self.causal)

    def inherit(self, model: Inherited) -> Self:
        config = super().inherit(model)
        if config.feature_map == "cosformer" and config.n_positions is None:
            return dataclasses.replace(config, n_positions=model.max_length)
        return config

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=10, n_heads=2, feature_dim=5, head_dim=3, feature_map="cosformer", n_positions=40)

    def build(self, *, rngs: nnx.Rngs) -> "LinearAttention":
        return LinearAttention(self, rngs=rngs)

    def papers_state_size(self, length: int) -> int | None:
        """Eq. 8: `(d + 1) f` for f features, as for one head of width d; our h heads hold h normalisers, and so
        `(d + h) f`. None where there is no state."""
        del length
        return (self.width + 1) * self.width_of_features if self.causal else None

    def flops_per_token(self, length: int) -> float:
        """Projections, random features, and writing and reading the sums of every head. If causal, the quadratic form
        over whole chunks, the padding of the last one included, and the sums past one chunk only."""
        h, k, v, f = self.n_heads, self.feature_dim, self.value_width, self.width_of_features
        projections = 4.0 * self.width * h * (k + v)
        if self.feature_map == "performer":
            projections += 4.0 * h * k * f
        sums = 2.0 * h * f * (2 * v + self.normalize)
        if not self.causal:
            return projections + sums
        chunk = min(CHUNK, -(-length // PIECE) * PIECE)
        padding = -(-length // chunk) * chunk / length
        within = 2.0 * h * chunk * (f + v)
        return projections + padding * (within + sums * (length > CHUNK))


class LinearAttentionState(NamedTuple):
    """The sums over the past."""

    s: Float[Array, "b h f v"]
    """Sum of `phi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """Sum of `phi(k_j)`, float32; empty, (b, h, 0), where nothing is normalised."""


class PositionedLinearAttentionState(NamedTuple):
    """The same for a feature map that reads positions, cosformer."""

    s: Float[Array, "b h f v"]
    """Sum of `phi(k_j) v_j^T`, float32."""
    z: Float[Array, "b h f"]
    """Sum of `phi(k_j)`, float32; empty, (b, h, 0), where nothing is normalised."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""


AnyState = LinearAttentionState | PositionedLinearAttentionState


class LinearAttention(Mixer):
    """Linear attention; the state has a fixed size, and `step` costs O(f v) a head.

    `q_proj` and `k_proj` (d, h k), `v_proj` (d, h v), `out_proj` (h v, d): head-major columns. With feature_map
    performer also the buffer `random_features` (f, k), the same for all heads.
    """

    config: LinearAttentionConfig

    def __init__(self, config: LinearAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, std, h, axes = config.width, config.std, config.n_heads, ("embed", "heads")
        self.q_proj = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.k_proj = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.v_proj = linear(d, h * config.value_width, axes=axes, std=std, rngs=rngs)
        self.out_proj = linear(h * config.value_width, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        if config.feature_map == "performer":
            rows = orthogonal_gaussian(rngs.params(), config.width_of_features, config.feature_dim)
            self.random_features = buffer(rows, (None, None))
        if config.feature_map == "cosformer":
            config.require("n_positions", config.n_positions is not None, "must be known for cosformer", "set it")
        self.config = config

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        # Documents need no positions of their own: only distances count, and a document is one run of tokens.
        tokens = self._project(x, jnp.arange(x.shape[1], dtype=jnp.int32)[None])
        options = {"normalize": self.config.normalize, "eps": self.config.eps}
        if self.config.causal:
            y, _ = linear_attention(*tokens, **options, segment_ids=context.segment_ids)
        else:
            y = _bidirectional(*tokens, **options)
        return self._merge(x, y)

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> AnyState:
        """Zeros. The sums are float32 whatever `dtype` says.

        Raises:
          ValueError: the mixer is not causal.
        """
        config = self.config
        config.require("causal", config.causal, "does not stream", "call the mixer on all tokens at once")
        s = jnp.zeros((batch_size, config.n_heads, config.width_of_features, config.value_width), jnp.float32)
        z = jnp.zeros((*s.shape[:2], s.shape[2] if config.normalize else 0), jnp.float32)
        if config.feature_map == "cosformer":
            return PositionedLinearAttentionState(s, z, jnp.zeros((batch_size,), jnp.int32))
        return LinearAttentionState(s, z)

    def prefill(
        self, x: Float[Array, "b t d"], state: AnyState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], AnyState]:
        ahead = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        y, sums = linear_attention(
            *self._project(x, _position(state)[:, None] + ahead),
            normalize=self.config.normalize,
            eps=self.config.eps,
            initial_state=self._sums(state),
        )
        return self._merge(x, y), _advance(state, sums, x.shape[1])

    def step(
        self, x_t: Float[Array, "b d"], state: AnyState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], AnyState]:
        q, k, v = (part[:, 0] for part in self._project(x_t[:, None], _position(state)[:, None]))
        y, sums = linear_attention_step(
            self._sums(state), q, k, v, normalize=self.config.normalize, eps=self.config.eps
        )
        return self._merge(x_t, y), _advance(state, sums, 1)

    def _project(self, x: Float[Array, "b t d"], position: Int[Array, "#b t"]) -> tuple[Array, Array, Array]:
        """Features of queries and keys `(b, t, h, f)`, float32, and values `(b, t, h, v)`."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        widths = (self.config.feature_dim, self.config.feature_dim, self.config.value_width)
        q, k, v = (
            project(x).reshape(*x.shape[:2], self.config.n_heads, width)
            for project, width in zip(projections, widths, strict=True)
        )
        # A factor of a query cancels only if the weights are normalised.
        return self._features(q, position, shifted=self.config.normalize), self._features(k, position), v

    def _features(self, x: Float[Array, "b t h k"], position: Int[Array, "#b t"], *, shifted: bool = False) -> Array:
        """phi, float32; `shifted` where any factor of a token may be taken out."""
        config, x = self.config, x.astype(jnp.float32)
        if config.feature_map == "performer":
            return performer_features(x, self.random_features[...], shifted=shifted)
        if config.feature_map == "exp":
            return exp_features(x, shifted=shifted)
        if config.feature_map == "cosformer":
            assert config.n_positions is not None
            return cosformer_features(x, position, n_positions=config.n_positions)
        return PLAIN_MAPS[config.feature_map](x)

    def _sums(self, state: AnyState) -> LinearState:
        """The state as the op takes it."""
        return LinearState(state.s, state.z if self.config.normalize else None)

    def _merge(self, x: Float[Array, "... d"], y: Float[Array, "... h v"]) -> Float[Array, "... d"]:
        """Joins the heads and projects back to the model width."""
        return self.out_proj(y.reshape(*x.shape[:-1], self.config.n_heads * self.config.value_width))


def _bidirectional(
    q: Float[Array, "b t h f"],
    k: Float[Array, "b t h f"],
    v: Float[Array, "b t h v"],
    *,
    normalize: bool,
    eps: float,
) -> Float[Array, "b t h v"]:
    """The equation with the sums over all tokens, in float32; y in the dtype of `v`."""
    precision = lax.Precision.HIGHEST if v.dtype == jnp.float32 else lax.Precision.DEFAULT
    s = jnp.einsum("bthf,bthv->bhfv", k, v.astype(jnp.float32), precision=precision)
    y = jnp.einsum("bthf,bhfv->bthv", q, s, precision=precision)
    if normalize:
        weights = jnp.einsum("bthf,bhf->bth", q, k.sum(1), precision=precision)
        y = y / (weights + np.float32(eps))[..., None]
    return y.astype(v.dtype)


def _position(state: AnyState) -> Int[Array, "#b"]:
    """Tokens seen; 0 for a feature map that does not ask."""
    return state.position if isinstance(state, PositionedLinearAttentionState) else jnp.zeros((1,), jnp.int32)


def _advance(state: AnyState, sums: LinearState, n_tokens: int) -> AnyState:
    """The state after `n_tokens` more tokens, of the same kind as before."""
    z = state.z if sums.z is None else sums.z
    if isinstance(state, PositionedLinearAttentionState):
        return PositionedLinearAttentionState(sums.s, z, state.position + n_tokens)
    return LinearAttentionState(sums.s, z)
