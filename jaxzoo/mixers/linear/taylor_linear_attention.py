"""Taylor linear attention, the global mixer of Based (Arora et al. 2024), sec. 4.1.

For each head, with `d'` = `feature_dim` channels of query and key and `s_ij = q_i . k_j / sqrt(d')`:

    y_i = sum_{j <= i} (1 + s_ij + s_ij^2 / 2) v_j / (sum_{j <= i} (1 + s_ij + s_ij^2 / 2) + eps)

(eqs. 2-4), then the output projection; no biases, no positions. The state is the sums over the past (eq. 3). Based,
App. E.2, eq. 9, counts `(1 + 3 d'/2 + d'^2/2) (d + 1)` entries for one head; with h heads `d + 1` becomes `d + h`, a
denominator per head.

Eq. 4 prints `1 + q.k + (q.k)^2 / 2`, without the root of `d'`; here, as in the released code (HazyResearch/based and
zoology), products are divided by it.

Options of App. C, off by default as in its main experiments: a fixed decay per head, and a scale of each head's output
by a linear function of the token, without a nonlinearity. The paper gives no decay rate; the released code has `1 -
2^(decay_const - h)`, with `decay_const` -5 by default, and one config with decay: `based-1b.yaml` (10 billion tokens),
`decay_const: -3, decay_denom: False`, which is `decay=True, decay_const=-3` here. (Its `decay_denom` divides each row
of the decay mask by the root of its sum; it has no counterpart here.) Deviation: numerator and denominator decay; in
their listing only the numerator does (`notebooks/03-31-decay.ipynb`; the last release ignores the decay), for which the
kernels would need a second decay, of `z`.

Prefix (`Context.prefix`), as in Just Read Twice (Arora et al. 2024, arXiv 2407.05483), Based's follow-up, whose model
reads the prompt as an encoder: tokens of a prefix also see its later tokens. We build the plain mask of a prefix
language model: the sums of eqs. 2-4 run over j <= i, and over all j of the prefix if i is in it. So the state after a
prefix, and all tokens after it, are as in causal attention; what differs are the outputs within the prefix, which the
next layer reads. Our choice: encoder and decoder have the same projections, and a token counts once. A decay has no
direction within a prefix, and is refused. The cost is a second pass, in the other direction; both are in float32.

Good at: Recall at constant memory: weights that approximate softmax keep distant tokens distinct.
Paper: Arora et al. 2024 (Based), sec. 4.1, https://arxiv.org/abs/2402.18668
"""

import dataclasses
import functools
from typing import Annotated, Any, Self

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt, Rule
from jaxzoo.layers.decay import head_decay
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.probe import show_scores
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.prefix_attention import prefix_attention
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float
from pallas_kernels.decode_step import taylor_step
from pallas_kernels.taylor_attention import (
    TaylorState,
    default_chunk,
    empty_state,
    sharded_taylor_attention,
    taylor_attention,
    taylor_feature_count,
)

TaylorLinearAttentionState = TaylorState


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorLinearAttentionConfig(MixerConfig):
    """Config of `TaylorLinearAttention`. Based 360m: n_heads=16, feature_dim=16."""

    size_fields = ("feature_dim", "head_dim")

    n_heads: PositiveInt = 1
    """Number of query heads."""
    n_kv_heads: PositiveInt | None = None
    """Key/value heads, each serving n_heads / n_kv_heads neighbouring query heads; None: n_heads."""
    feature_dim: PositiveInt = 16
    """Width of a head's queries and keys, d' in the paper; the state size grows with its square."""
    head_dim: PositiveInt | None = None
    """Width of a head's values; None: d_model / n_heads."""
    eps: NonNegativeFloat = 1e-12
    """Added to the denominator."""
    normalize: bool = True
    """Divides by the sum of the weights."""
    chunk_size: PositiveInt | None = None
    """Chunk length; None: depends on the sequence length."""
    output_scaling: bool = False
    """Scales each head's output by a learned linear function of the token (App. C)."""
    decay: bool = False
    """Decays head h by 1 - 2^(decay_const - h) a token, h counted from 0 (App. C)."""
    decay_const: Annotated[float, Rule("must be in [-20, -1]", -20, -1)] = -5.0
    """Exponent of the fastest decay; the released code's default is -5, its config with decay has -3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must divide n_heads={self.n_heads}"
        self.require("n_kv_heads", self.n_heads % self.kv_heads == 0, rule, "or be None")
        if not self.head_dim:
            self.require_divisible("d_model", by="n_heads")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(segments=True, sequence_parallel=True, prefix=not self.decay)

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default filled in."""
        return self.n_kv_heads or self.n_heads

    @property
    def value_width(self) -> int:
        """Width of a head's values, with the default filled in."""
        return self.head_dim or self.width // self.n_heads

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            d_model=10,
            n_heads=4,
            n_kv_heads=2,
            feature_dim=3,
            head_dim=5,
            chunk_size=4,
            output_scaling=True,
            decay=True,
        )

    def papers_state_size(self, length: int) -> int:
        """Eq. 9: `(d + 1) (1 + 3 d'/2 + d'^2/2)` for one head of width d; h heads have h normalisers: `(d + h)
        (...)`."""
        del length
        f = self.feature_dim
        return (self.width + 1) * (1 + (3 * f + f * f) // 2)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, the quadratic form over a chunk (masked half included), and beyond one chunk update
        and read of the `f (v + 1)` sums per head; with the chunk length of the `xla` implementation."""
        h, g, k, v = self.n_heads, self.kv_heads, self.feature_dim, self.value_width
        projections = 2.0 * self.width * ((h + g) * k + (h + g) * v + h * self.output_scaling)
        chunk = self.chunk_size or default_chunk(length)
        within = 2.0 * h * min(chunk, length) * (k + v + 1)
        across = 4.0 * h * taylor_feature_count(k) * (v + 1) if length > chunk else 0.0
        return projections + within + across


class TaylorLinearAttention(Mixer):
    """Taylor linear attention; the state has a fixed size, and `step` costs O(f v) per head.

    `q_proj` (d, h k), `k_proj` (d, g k), `v_proj` (d, g v), `out_proj` (h v, d): head-major columns; with
    `output_scaling` also `scale_proj` (d, h).
    """

    config: TaylorLinearAttentionConfig

    def __init__(self, config: TaylorLinearAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, std, h, g = config.width, config.std, config.n_heads, config.kv_heads
        axes, out_axes = ("embed", "heads"), ("heads", "embed")
        self.q_proj: nnx.Linear = linear(d, h * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, g * config.feature_dim, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, g * config.value_width, axes=axes, std=std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(h * config.value_width, d, axes=out_axes, std=config.out_std, rngs=rngs)
        if config.output_scaling:
            self.scale_proj: nnx.Linear = linear(d, h, axes=axes, std=std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> TaylorLinearAttentionState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        return empty_state(batch_size, config.n_heads, config.feature_dim, config.value_width)

    def mix(
        self, x: Float[Array, "*b d"], state: TaylorLinearAttentionState | None, context: Context
    ) -> tuple[Array, TaylorLinearAttentionState | None]:
        config, q = self.config, split_heads(self.q_proj(x), self.config.n_heads)
        k, v = (split_heads(project(x), config.kv_heads) for project in (self.k_proj, self.v_proj))
        options: dict[str, Any] = {"eps": config.eps, "normalize": config.normalize, "decay": None}
        if config.decay:
            options["decay"] = jnp.asarray(head_decay(config.decay_const, config.n_heads), jnp.float32)
        attend = on_mesh(taylor_attention, sharded_taylor_attention, q, k)
        if context.prefix is not None:
            attend = functools.partial(prefix_attention, attend, context.prefix)
        attend = functools.partial(attend, q, k, chunk_size=config.chunk_size, **options)
        if state is None:
            attend = functools.partial(attend, segment_ids=context.segment_ids)
            show_scores(attend, v)
            y = attend(v)
        elif x.ndim == 2:
            y, state = taylor_step(state, q, k, v, **options)
        else:
            y, state = attend(v, initial_state=state, return_state=True)
        if config.output_scaling:
            y = y * self.scale_proj(x)[..., None]
        return self.out_proj(y.reshape(*x.shape[:-1], config.n_heads * config.value_width)), state
