"""ScatterBrain (Chen et al. 2021): softmax in a window plus random features beyond it, one normaliser; causal.

The paper corrects a low-rank approximation phi(q).phi(k) of exp(q.k / sqrt(k)) by a sparse matrix, to the exact weights
in its support (sec. 4). With a sliding window as the support, as in Based's comparison (Fig. 8):

    a_ij = exp(q_i . k_j / sqrt(k))     i - w < j <= i
    a_ij = phi(q_i) . phi(k_j)          j <= i - w
    y_i = sum_j a_ij v_j / sum_j a_ij

phi are the positive random features of Performer (Choromanski et al. 2021, lemma 1), `n_features` of them; `paired`
uses half as many rows W, each with its negative, like the authors' code. `window=w` includes the token itself.

A token enters the low-rank sums only when it leaves the window, so nothing is subtracted. The two parts are combined by
the logarithms of their sums of weights, so that scores of any size neither overflow nor underflow.

The state is the window's keys and values and f (v + 1) sums per head. Its size, without the position, is that of
Based's released code: 2 w d + (d + h) f.

Deviations: the paper finds the support by LSH; here it is the window only, as in Based. W is drawn once and fixed. The
released window sees w + 1 keys and normalises its weights before the two parts are combined, and divides features of
keys by the largest of the whole sequence, which is not causal; here the equation above is computed.

Good at: Exact attention nearby and approximate attention beyond, under one normaliser, in fixed memory.
Paper: Chen et al. 2021, https://arxiv.org/abs/2110.15343
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.feature_maps import orthogonal_gaussian, performer_exponent
from jaxzoo.layers.probe import recording
from jaxzoo.layers.variables import Buffer, buffer
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention, linear_attention_step
from jaxzoo.ops.local_attention import attend_one, keys_per_query, local_attention
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.sliding_window import SlidingWindowCache
from pallas_kernels.sliding_window.cache import append, append_one, rounded

SMALLEST = 1e-30
"""Sums of key features below it are treated as 0: all keys are far longer than the rows of W."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScatterBrainConfig(MultiHeadConfig):
    """Config of `ScatterBrain`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    positions: Literal["none", "rotary"] = "none"
    """Position encoding."""
    window: PositiveInt = 64
    """Keys that a token sees with exact weights, including its own."""
    n_features: PositiveInt = 64
    """Random features of the weights beyond the window."""
    paired: bool = True
    """Uses each row of W and its negative; n_features must be even."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("n_kv_heads", self.kv_heads == self.n_heads, f"must be n_heads={self.n_heads}", "or None")
        even = not self.paired or self.n_features % 2 == 0
        self.require("n_features", even, "must be even with paired=True")

    @property
    def block_size(self) -> int:
        """Queries per block: half a window, between 16 and 128."""
        return min(max(16, -(-self.window // 2)), 128)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=9, n_heads=2, head_dim=4, positions="rotary", qkv_bias=True, window=3, n_features=6)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, two matmuls of every query with the keys of its block, and beyond one window the
        random features and chunked sums."""
        heads, width, f = self.n_heads, self.head_width, self.n_features
        keys = keys_per_query(length, block_size=self.block_size, reach=self.window - 1)
        near = self.projection_flops + 4.0 * heads * width * keys
        if length <= self.window:
            return near
        features = 4.0 * heads * width * f
        return near + features + 2.0 * heads * (min(CHUNK, length) * (f + width + 1) + 2 * f * (width + 1))


class ScatterBrainState(NamedTuple):
    """The window, and sums over the tokens before it."""

    k: Float[Array, "b w h k"]
    """Keys, rotated to their absolute positions, in the dtype given: slot `p % w` holds absolute position `p`."""
    v: Float[Array, "b w h k"]
    """Values of the same tokens, in the same dtype."""
    sums: Float[Array, "b h f v+1"]
    """Sum of `phi(k_j) [v_j, 1]^T` over the tokens that have left the window, float32."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""


class ScatterBrain(MultiHeadMixer):
    """Window and random features under one normaliser; O(window + n_features head_dim) per token and head.

    The buffer `random_features` (n_features, or half of it if paired, head_dim) holds W, the same for all heads.
    """

    config: ScatterBrainConfig

    def __init__(self, config: ScatterBrainConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        rows = config.n_features // (1 + config.paired)
        self.random_features: Buffer = buffer(orthogonal_gaussian(rngs.params(), rows, config.head_width), (None, None))

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        t, w = x.shape[1], self.config.window
        here = jnp.arange(t, dtype=jnp.int32)[None, :]
        ids = jnp.zeros_like(here) if context.segment_ids is None else context.segment_ids
        # Random features of rotated vectors depend on absolute positions, not only on differences.
        q, k, v = self._project(x, position_in_segment(ids))
        near = self._near(q, k, v, here, ids)
        if t <= w:
            return self._merge(near[0])
        left = jnp.pad(ids[:, : t - w] == ids[:, w:], ((0, 0), (w, 0)))
        k, v = (apply_with_halo(Partial(lambda extended, _: extended[:, :-w]), w, y) for y in (k, v))
        phi_q, shift = self._query_features(q)
        phi_k, values = self._left(k, v, left)
        with recording(None):  # the scores of a part are not the scores of the mixer
            far, _ = linear_attention(phi_q, phi_k, values, segment_ids=context.segment_ids)
        return self._merge(_join(*near, far, shift))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> ScatterBrainState:
        config = self.config
        h, width = config.n_heads, config.head_width
        k = jnp.zeros((batch_size, config.window, h, width), dtype)
        sums = jnp.zeros((batch_size, h, config.n_features, width + 1), jnp.float32)
        return ScatterBrainState(k, jnp.zeros_like(k), sums, jnp.zeros((batch_size,), jnp.int32))

    def prefill(
        self, x: Float[Array, "b t d"], state: ScatterBrainState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], ScatterBrainState]:
        t, w = x.shape[1], self.config.window
        positions = state.position[:, None] + jnp.arange(-w, t, dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, positions[:, w:])
        cache = SlidingWindowCache(state.k, state.v, state.position)
        k, v = rounded(cache, k, v)
        slots = (positions[:, :w] % w)[:, :, None, None]
        keys, values = (
            jnp.concatenate([jnp.take_along_axis(old, slots, axis=1).astype(q.dtype), new], axis=1)
            for old, new in ((state.k, k), (state.v, v))
        )
        near = self._near(q, keys, values, positions, jnp.minimum(positions, 0))
        phi_q, shift = self._query_features(q)
        phi_k, left = self._left(keys[:, :t], values[:, :t], positions[:, :t] >= 0)
        far, sums = linear_attention(phi_q, phi_k, left, initial_state=LinearState(state.sums, None))
        after = append(cache, k, v)
        return self._merge(_join(*near, far, shift)), ScatterBrainState(after.k, after.v, sums.s, after.position)

    def step(
        self, x_t: Float[Array, "b d"], state: ScatterBrainState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], ScatterBrainState]:
        w, position = self.config.window, state.position[:, None]
        q, k, v = self._project(x_t[:, None], position)
        cache = SlidingWindowCache(state.k, state.v, state.position)
        oldest = (position % w)[:, :, None, None]
        k_left, v_left = (jnp.take_along_axis(y, oldest, axis=1).astype(q.dtype) for y in (state.k, state.v))
        after = append_one(cache, k[:, 0], v[:, 0])
        written = jnp.arange(w, dtype=jnp.int32)[None, :] <= position
        near = attend_one(q[:, 0], after.k, after.v, written)
        phi_q, shift = self._query_features(q)
        phi_k, values = self._left(k_left, v_left, position >= w)
        far, sums = linear_attention_step(LinearState(state.sums, None), phi_q[:, 0], phi_k[:, 0], values[:, 0])
        y = self._merge(_join(*near, far, shift[:, 0])[:, None])
        return y[:, 0], ScatterBrainState(after.k, after.v, sums.s, after.position)

    def _near(
        self, q: jax.Array, k: jax.Array, v: jax.Array, positions: Int[Array, "#b s"], ids: Int[Array, "#b s"]
    ) -> tuple[Float[Array, "b t h k"], Float[Array, "b t h"]]:
        """Attention in the window, and the logarithms of its sums of weights."""
        window, size = self.config.window, self.config.block_size
        return local_attention(q, k, v, (positions, ids), (window - 1, 0), block_size=size, reach=window - 1)

    def _exponent(self, x: Float[Array, "b t h k"]) -> Float[Array, "b t h f"]:
        """Logarithms of random features."""
        rows = self.random_features[...]
        rows = jnp.concatenate([rows, -rows]) if self.config.paired else rows
        return performer_exponent(x.astype(jnp.float32), rows) - np.float32(np.log(rows.shape[0]) / 2)

    def _query_features(self, q: Float[Array, "b t h k"]) -> tuple[Float[Array, "b t h f"], Float[Array, "b t h"]]:
        """phi of queries divided by its largest entry, and the logarithm of that entry, which cancels and so has no
        gradient."""
        exponent = self._exponent(q)
        shift = jax.lax.stop_gradient(exponent.max(-1))
        return jnp.exp(exponent - shift[..., None]), shift

    def _left(
        self, k: Float[Array, "b t h k"], v: Float[Array, "b t h k"], exists: Bool[Array, "#b t"]
    ) -> tuple[Float[Array, "b t h f"], Float[Array, "b t h v+1"]]:
        """phi of the keys that leave the window, 0 if none does, and [v, 1], float32."""
        phi = jnp.where(exists[..., None, None], jnp.exp(self._exponent(k)), 0.0)
        ones = jnp.ones((*v.shape[:3], 1), jnp.float32)
        return phi, jnp.concatenate([v.astype(jnp.float32), ones], axis=-1)


def _join(
    near: Float[Array, "... v"], near_log: Float[Array, "..."], far: Float[Array, "... v+1"], shift: Float[Array, "..."]
) -> Float[Array, "... v"]:
    """Combines the means of both parts by their shares of the total weight.

    Sums below `SMALLEST` count as 0; larger sums are scaled to 1 first, since the gradient of a quotient squares them.
    """
    exists = far[..., -1:] > SMALLEST
    scale = 1 / jax.lax.stop_gradient(jnp.where(exists, far[..., -1:], 1.0))
    far = jnp.where(exists, far * scale, 1.0)
    log_share = (shift - near_log)[..., None] + jnp.log(far[..., -1:]) - jnp.log(scale)
    share = jnp.where(exists, jax.nn.sigmoid(log_share), 0.0)
    mean = near.astype(jnp.float32)
    return (mean + share * (far[..., :-1] / far[..., -1:] - mean)).astype(near.dtype)
