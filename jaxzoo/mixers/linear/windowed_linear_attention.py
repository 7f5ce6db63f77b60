"""Softmax attention in a window, linear attention to all tokens before it, one normaliser.

`jaxzoo linearize` converts attention into this mixer: projections, heads, rotary positions and norms have the
names and shapes of `Attention`. For each head, with `s_ij = q_i . k_j / sqrt(k)` and
features phi of queries and keys (the sliding window of LoLCATs, Zhang et al. 2024, arXiv 2410.10254):

    n_i = sum_{j = i-w+1 .. i} exp(s_ij) v_j + e^g sum_{j <= i-w} phi(q_i) . phi(k_j) v_j
    d_i = sum_{j = i-w+1 .. i} exp(s_ij)     + e^g sum_{j <= i-w} phi(q_i) . phi(k_j)         y_i = n_i / d_i

| `feature_map` | phi(x) of a query or key x of k channels; W (k, `feature_dim`) is learned per head | features |
| --- | --- | --- |
| taylor | Taylor features (Based, eqs. 2-4) of x W, scaled like exp(s) | 1 + f + f (f + 1) / 2 |
| hedgehog | softmax over channels of x W and of -x W (Hedgehog, arXiv 2402.04347, softmax instead of exp) | 2 f |
| none | nothing is seen beyond the window | 0 |

`window=0` is linear attention only, which then includes the token itself. Queries and keys have separate W. They start
as the identity (Hedgehog), or if f < k as f orthonormal columns times (k / f)^(1/4), which keeps the mean of s.

Deviations from LoLCATs: exp(s) is not divided by its largest value in the window, which would change the window's
weight from token to token; the factor e^g multiplies the linear sums, in LoLCATs the window's sums. The state is the
window's keys and values and, per query head, the sums over earlier tokens.

Good at: Taking over weights of trained attention: exact nearby, a state of fixed size for the rest.
Paper: Zhang et al. 2024 (LoLCATs), https://arxiv.org/abs/2410.10254
"""

import dataclasses
import math
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.layers.feature_maps import hedgehog_features, taylor_features
from jaxzoo.layers.probe import show_scores
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.base import Capabilities, Context
from jaxzoo.ops.linear_attention import LinearState, linear_attention, linear_attention_step
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.softmax import softmax_attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowedLinearAttentionConfig(MultiHeadConfig):
    """Config of `WindowedLinearAttention`."""

    promises = Capabilities(segments=True)
    size_fields = ("window", "feature_dim", "head_dim")

    positions: Literal["none", "rotary", "xpos"] = "rotary"
    """Position encoding; xpos only without features: its factors of up to 2^58 cancel in q . k, not in phi."""
    window: NonNegativeInt = 64
    """Keys that a token sees by softmax, including its own."""
    feature_map: Literal["taylor", "hedgehog", "none"] = "taylor"
    """Feature map phi; see the table of `jaxzoo/mixers/linear/windowed_linear_attention.py`."""
    feature_dim: PositiveInt | None = 16
    """Columns of W, at most the width of a head; None: that width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("window", self.window > 0 or self.has_features, "must be positive with feature_map='none'")
        fits = not self.head_width or self.map_width <= self.head_width
        self.require("feature_dim", fits, f"must be at most the {self.head_width} channels of a head", "or be None")
        rule = f"must be 'none' or 'rotary' with feature_map={self.feature_map!r}: W would mix channels of all lengths"
        self.require("positions", self.positions != "xpos" or not self.has_features, rule)

    @property
    def has_features(self) -> bool:
        """Whether tokens beyond the window are seen."""
        return self.feature_map != "none"

    @property
    def map_width(self) -> int:
        """Columns of W, with the default filled in."""
        return self.feature_dim or self.head_width

    @property
    def width_of_features(self) -> int:
        """Features of a head."""
        f = self.map_width
        return {"taylor": 1 + f + f * (f + 1) // 2, "hedgehog": 2 * f, "none": 0}[self.feature_map]

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=13, n_heads=4, n_kv_heads=2, head_dim=4, rotary_fraction=0.5, window=3, feature_dim=3)

    def flops_per_token(self, length: int) -> float:
        """Projections; scores and sums of blocks of the window's size, with their masked part; W of queries and keys,
        and update and read of the sums of each head."""
        h, k, f = self.n_heads, self.head_width, self.width_of_features
        keys = min(length, self.window) + self.window - 1 if self.window else 0
        features = 4.0 * h * (k * self.map_width + f * (k + 1)) if self.has_features else 0.0
        return self.projection_flops + 4.0 * h * k * keys + features


class WindowedLinearAttentionState(NamedTuple):
    """The window, and sums over the tokens before it."""

    k: Float[Array, "b w g k"]
    """Keys of the last `window` tokens, oldest first, rotated to their absolute positions."""
    v: Float[Array, "b w g k"]
    """Values of the same tokens."""
    s: Float[Array, "b h f k+1"]
    """Sum of `phi(k_j) [v_j, 1]^T`, float32; f is 0 without features."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""


class WindowedLinearAttention(SteppedByPrefill):
    """Causal; the state has a fixed size, and `step` costs O(window k + f k) per head.

    Parameters: those of `Attention`; with features `q_map`, `k_map` (h, k, f), W of queries and keys; with features and
    a window also `log_weight` (h,), g.
    """

    config: WindowedLinearAttentionConfig

    def __init__(self, config: WindowedLinearAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.has_features:
            h, k, f = config.n_heads, config.head_width, config.map_width
            key, axes = rngs.params(), ("heads", None, None)
            if f == k:
                start = jnp.broadcast_to(jnp.eye(k), (h, k, k))
            else:
                start = jax.random.orthogonal(key, k, (h,))[..., :f] * np.float32((k / f) ** 0.25)
            self.q_map: nnx.Param[jax.Array] = parameter(start, axes, decay=False)
            self.k_map: nnx.Param[jax.Array] = parameter(jnp.array(start), axes, decay=False)
        if config.has_features and config.window:
            # Uniform hedgehog features have the product 2 / f; exp(s) is 1 at s = 0.
            g = math.log(config.map_width / 2) if config.feature_map == "hedgehog" else 0.0
            self.log_weight: nnx.Param[jax.Array] = parameter(
                jnp.full((config.n_heads,), g, jnp.float32), ("heads",), decay=False
            )

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> WindowedLinearAttentionState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        window = jnp.zeros((batch_size, config.window, config.kv_heads, config.head_width), dtype)
        s = jnp.zeros((batch_size, config.n_heads, config.width_of_features, config.head_width + 1), jnp.float32)
        return WindowedLinearAttentionState(window, window, s, jnp.zeros((batch_size,), jnp.int32))

    def mix(
        self, x: Float[Array, "b t d"], state: WindowedLinearAttentionState | None, context: Context
    ) -> tuple[Array, WindowedLinearAttentionState]:
        streams, segment_ids = state is not None, context.segment_ids
        state = self.init_state(x.shape[0], dtype=x.dtype) if state is None else state
        (b, t, _), w = x.shape, self.config.window
        positions = state.position[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
        if segment_ids is not None:  # features of rotated keys depend on absolute positions
            positions = position_in_segment(segment_ids)
        q, k, v = self._project(x, positions)
        k, v = (jnp.concatenate([old.astype(new.dtype), new], axis=1) for old, new in ((state.k, k), (state.v, v)))
        # Mask of existing tokens, the window in front included, and their document ids.
        ids = jnp.zeros((b, t), jnp.int32) if segment_ids is None else segment_ids
        absolute = state.position[:, None] + jnp.arange(-w, t, dtype=jnp.int32)[None]
        documents = jnp.concatenate([jnp.zeros((b, w), jnp.int32), ids], axis=1)
        seen = absolute >= 0

        def attend(v: Array, s: Array) -> tuple[Array, Array]:
            """Outputs of the heads, and new sums; linear in the values."""
            if not self.config.has_features:
                return window_attention(q, k, v, seen, documents, window=w)[0], s
            live = seen[:, :t] & (documents[:, :t] == ids)
            far, weight, s = self._linear(q, k[:, :t], v[:, :t], live, s, segment_ids)
            if w == 0:
                return far, s
            near, lse = window_attention(q, k, v, seen, documents, window=w)
            return self._joined(near, lse, far, weight), s

        def scores(unit: Array) -> Array:
            empty = jnp.zeros((*state.s.shape[:3], unit.shape[-1] + 1), jnp.float32)
            return attend(jnp.pad(unit, [(0, 0), (w, 0), (0, 0), (0, 0)]), empty)[0]

        if not streams:
            show_scores(scores, v[:, w:])
        y, s = attend(v, state.s)
        y = self._merge(y.astype(x.dtype))
        last_k, last_v = k[:, t:].astype(state.k.dtype), v[:, t:].astype(state.v.dtype)
        return y, WindowedLinearAttentionState(last_k, last_v, s, state.position + t)

    def _linear(
        self,
        q: Float[Array, "b t h k"],
        k: Float[Array, "b t g k"],
        v: Float[Array, "b t g v"],
        live: Bool[Array, "b t"],
        s: Float[Array, "b h f v+1"],
        segment_ids: Int[Array, "b t"] | None,
    ) -> tuple[Array, Array, Array]:
        """Linear attention per token: mean of the values (b, t, h, v) and total weight (b, t, h), 0 without live
        tokens; and the final sums. `k` and `v` belong to the tokens `window` places earlier."""
        h, g = self.config.n_heads, self.config.kv_heads
        k, v = (jnp.repeat(x.astype(jnp.float32), h // g, axis=2) for x in (k, v))
        # A token that is not live contributes neither values nor weight.
        values = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) * live[:, :, None, None].astype(jnp.float32)
        q, k = self._features(q.astype(jnp.float32), self.q_map[...]), self._features(k, self.k_map[...])
        if q.shape[1] == 1:
            y, after = linear_attention_step(LinearState(s, None), q[:, 0], k[:, 0], values[:, 0])
            y = y[:, None]
        else:
            y, after = linear_attention(q, k, values, initial_state=LinearState(s, None), segment_ids=segment_ids)
        weight = y[..., -1]
        return y[..., :-1] / jnp.where(weight > 0, weight, 1)[..., None], weight, after.s

    def _features(self, x: Float[Array, "b t h k"], matrix: Float[Array, "h k f"]) -> Float[Array, "b t h f"]:
        x = jnp.einsum("bthk,hkf->bthf", x, matrix, precision=jax.lax.Precision.HIGHEST)
        return taylor_features(x, full=False) if self.config.feature_map == "taylor" else hedgehog_features(x)

    def _joined(
        self,
        near: Float[Array, "b t h v"],
        lse: Float[Array, "b t h"],
        far: Float[Array, "b t h v"],
        weight: Float[Array, "b t h"],
    ) -> Float[Array, "b t h v"]:
        """Combines both means by their shares of d_i; float32."""
        has_far = weight > 0
        difference = lse - jnp.log(jnp.where(has_far, weight, 1)) - self.log_weight[...][None, None]
        share = jnp.where(has_far, jax.nn.sigmoid(difference), 1)[..., None]
        return share * near.astype(jnp.float32) + (1 - share) * far


def window_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b w+t g k"],
    v: Float[Array, "b w+t g v"],
    seen: Bool[Array, "b w+t"],
    documents: Int[Array, "b w+t"],
    *,
    window: int,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b t h"]]:
    """Softmax attention to the last `window` keys that exist in the query's document, and the log of the sum of
    weights, which `sliding_window_attention` does not return.

    The first `window` keys precede the queries. Blocks of `window` queries; O(window k) per token and head.
    """
    (b, t, h, width), g = q.shape, k.shape[2]
    c = max(1, min(t, window))
    n = -(-t // c)
    # Block i: queries i c .. i c + c - 1; keys from the first one that its first query sees to its last query.
    places = np.arange(n)[:, None] * c + 1 + np.arange(c + window - 1)[None]
    padded = [(0, 0), (0, n * c - t)]
    k, v = (jnp.pad(x, [*padded, (0, 0), (0, 0)])[:, places] for x in (k, v))
    seen = jnp.pad(seen, padded, constant_values=True)[:, places]
    documents = jnp.pad(documents, padded)
    of_queries = documents[:, window:].reshape(b, n, c)
    row, column = np.arange(c)[:, None], np.arange(c + window - 1)[None]
    band = (row <= column) & (column < row + window)
    alike = of_queries[..., None] == documents[:, places][:, :, None]
    visible = jnp.asarray(band)[None, None] & seen[:, :, None] & alike
    q = jnp.pad(q, [*padded, (0, 0), (0, 0)]).reshape(b, n, c, g, h // g, width)
    y, lse = softmax_attention(
        q.transpose(0, 1, 3, 4, 2, 5),
        k.transpose(0, 1, 3, 2, 4),
        v.transpose(0, 1, 3, 2, 4),
        visible=visible[:, :, None, None],
        scale=width**-0.5,
    )
    y = y.transpose(0, 1, 4, 2, 3, 5).reshape(b, n * c, h, v.shape[-1])[:, :t]
    return y, lse.transpose(0, 1, 4, 2, 3).reshape(b, n * c, h)[:, :t]
