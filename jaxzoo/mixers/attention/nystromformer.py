"""NystromFormer (Xiong et al. 2021, eqs. 13 to 15): softmax attention approximated by landmarks; bidirectional.

Queries and keys are averaged over `n_landmarks` segments of the row. With S(q, k) = softmax(q k^T / sqrt(k)) over rows,
attention to all tokens is approximated as

    y = S(q, k') Z S(q', k) v + conv(v)        Z ~ pseudo-inverse of A = S(q', k')

q', k' are the landmarks, and conv is a centred depthwise convolution with one filter per head (the paper's skip
connection). Z is computed by `n_iterations` of Z <- Z (13 - A Z (15 - A Z (7 - A Z))) / 4, from A^T / (|A|_1 |A|_inf).
Up to `n_landmarks` tokens the attention is exact.

Landmarks average over future tokens and the inverse mixes all landmarks, so the mixer is not causal: it has no
streaming form and no packed documents. `form="release"` is the code that Based compared with causal mixers (Fig. 8). It
masks the three matrices above their diagonals, but a landmark's index is not a token position: tokens still see
landmarks of their future. Only up to `n_landmarks` tokens is it causal attention. It had no convolution (`n_taps=0`).

Deviations: if the number of tokens is not a multiple of the landmarks, the first segments are one token shorter, as in
the released code; the paper pads. The initial Z is divided by each matrix's own |A|_1, as printed; the paper's code
takes the largest of the batch, so that rows depend on each other.

Initialisation: the filter uniform in +-1 / sqrt(n_taps), PyTorch's default.

Good at: Long inputs that are read as a whole; it approximates attention by landmarks.
Paper: Xiong et al. 2021, https://arxiv.org/abs/2102.03902
"""

import dataclasses
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.layers.causal_conv import causal_conv, conv_flops, uniform_parameter
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.mixers.attention.softmax_attention import dense_attention
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class NystromFormerConfig(MultiHeadConfig):
    """Config of `NystromFormer`."""

    promises = Capabilities(causal=False, streams=False)

    positions: Literal["none", "rotary"] = "none"
    """Position encoding."""
    n_landmarks: PositiveInt = 64
    """Number of landmarks, the means over segments of a row."""
    n_iterations: PositiveInt = 6
    """Iterations of the pseudo-inverse."""
    n_taps: NonNegativeInt = 33
    """Taps of the convolution, odd; 0: no convolution."""
    form: Literal["paper", "release"] = "paper"
    """Bidirectional, or with the masks of Based's released code, which do not make it causal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("n_kv_heads", self.kv_heads == self.n_heads, f"must be n_heads={self.n_heads}", "or None")
        self.require("n_taps", self.n_taps % 2 == 1 or self.n_taps == 0, "must be odd", "or 0, for no convolution")

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=9, n_heads=2, head_dim=4, positions="rotary", qkv_bias=True, n_landmarks=4, n_taps=3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, convolution, and the matmuls with landmarks and of the iterations; of full attention up
        to `n_landmarks` tokens."""
        heads, width, m = self.n_heads, self.head_width, self.n_landmarks
        flops = self.projection_flops
        if self.n_taps:
            half = self.n_taps // 2
            flops += heads * width * conv_flops(self.n_taps, length + half) * (length + half) / length
        if length <= m:
            return flops + 4.0 * heads * width * length
        landmarks = 4.0 * m**2 * width + self.n_iterations * 8.0 * m**3
        return flops + heads * (8.0 * width * m + landmarks / length)


class NystromFormer(MultiHeadMixer):
    """Attention approximated by landmarks; O(t n_landmarks). Parameters: projections, `taps` (n_taps, h) if n_taps >
    0."""

    config: NystromFormerConfig

    def __init__(self, config: NystromFormerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        if config.n_taps:
            shape = (config.n_taps, config.n_heads)
            self.taps: nnx.Param[jax.Array] = uniform_parameter(shape, config.n_taps, (None, "heads"), rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        config, t = self.config, x.shape[1]
        here = jnp.arange(t, dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, here)
        masked = config.form == "release"
        if t <= config.n_landmarks:
            visible = here[:, None, :] <= here[:, :, None]
            y = dense_attention(q, k, v, visible if masked else jnp.ones_like(visible))
        else:
            y = nystrom_attention(
                q, k, v, n_landmarks=config.n_landmarks, n_iterations=config.n_iterations, masked=masked
            )
        if config.n_taps:
            # Centred: sum_a taps[a] v_{i + n_taps // 2 - a}, zeros beyond the ends.
            half = config.n_taps // 2
            ahead = jnp.pad(v.reshape(*v.shape[:2], v.shape[2] * v.shape[3]), ((0, 0), (0, half), (0, 0)))
            taps = jnp.repeat(self.taps[...], config.head_width, axis=1)
            y = y + causal_conv(ahead, taps)[:, half:].reshape(v.shape)
        return self._merge(y)


def nystrom_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    n_landmarks: int,
    n_iterations: int,
    masked: bool = False,
) -> Float[Array, "b t h v"]:
    """`S(q, k') Z S(q', k) v` for more queries than landmarks, computed in float32; `masked`: zeros above the diagonals
    of all S."""
    q, k, values = (x.astype(jnp.float32).swapaxes(1, 2) for x in (q, k, v))
    q = q * np.float32(q.shape[-1] ** -0.5)
    q_marks, k_marks = (_segment_means(x, n_landmarks) for x in (q, k))
    inverse = pseudo_inverse(_softmax(q_marks, k_marks, masked), n_iterations)
    seen = _matmul(_softmax(q_marks, k, masked), values)
    y = _matmul(_softmax(q, k_marks, masked), _matmul(inverse, seen))
    return y.swapaxes(1, 2).astype(v.dtype)


def pseudo_inverse(a: Float[Array, "... m m"], n_iterations: int) -> Float[Array, "... m m"]:
    """Moore-Penrose inverse by iterated matrix products (Razavi et al. 2014; eq. 15)."""
    norms = jnp.abs(a).sum(-2).max(-1) * jnp.abs(a).sum(-1).max(-1)
    z = a.swapaxes(-1, -2) / norms[..., None, None]
    one = jnp.eye(a.shape[-1]).reshape((1,) * (a.ndim - 2) + a.shape[-2:])
    for _ in range(n_iterations):
        az = _matmul(a, z)
        z = 0.25 * _matmul(z, 13 * one - _matmul(az, 15 * one - _matmul(az, 7 * one - az)))
    return z


def _segment_means(x: Float[Array, "b h t k"], n: int) -> Float[Array, "b h n k"]:
    """Means over n segments in order; all but the first `n - t % n` have one token more."""
    t = x.shape[2]
    size, longer = divmod(t, n)
    cut = (n - longer) * size
    parts = (x[:, :, :cut], n - longer, size), (x[:, :, cut:], longer, size + 1)
    means = [y.reshape(*x.shape[:2], count, length, x.shape[3]).mean(3) for y, count, length in parts]
    return jnp.concatenate(means, axis=2)


def _softmax(q: Float[Array, "b h t k"], k: Float[Array, "b h s k"], masked: bool) -> Float[Array, "b h t s"]:
    scores = _matmul(q, k.swapaxes(2, 3))
    if masked:
        scores = jnp.where(jnp.asarray(np.tri(*scores.shape[2:], dtype=bool))[None, None], scores, -jnp.inf)
    return jax.nn.softmax(scores)


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
