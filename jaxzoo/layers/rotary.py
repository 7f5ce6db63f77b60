"""Rotary position embedding (Su et al. 2021, RoFormer, eq. 15), exact at any position.

Pair `i` of the `n` rotated channels turns by `p * base^(-2 i / n)` radians at position `p`, or less if frequencies are
scaled (`rotary_scaling.py`). The remaining channels are unchanged. Pairs of channels:

| `interleaved` | pair i | source |
| --- | --- | --- |
| False | `i` and `i + n / 2` | GPT-NeoX, Llama |
| True | `2 i` and `2 i + 1` | RoFormer, GPT-J, TorchScale |

Deviation: angles are computed by `fractions`, since the float32 product of position and frequency has an error of up to
4e-3 radians at position 100,000.
"""

import math

import jax.numpy as jnp
import numpy as np

from jaxzoo.layers.rotary_scaling import NO_SCALING, RotaryScaling
from jaxzoo.utils.array_typing import Array, Float, Int

TURN = 2.0**32
"""Integer phase of one full turn, at which int32 arithmetic wraps around."""


def rotary(
    x: Float[Array, "b t h k"],
    positions: Int[Array, "b t"],
    *,
    channels: int | None = None,
    base: float = 10000.0,
    scaling: RotaryScaling = NO_SCALING,
    interleaved: bool = False,
    lengths: Float[Array, "b t pairs"] | None = None,
) -> Float[Array, "b t h k"]:
    """Rotates the first `channels` channels of every head by angles proportional to the position.

    Scores of rotated queries and keys depend only on the difference of their positions. Computes in float32.

    Args:
      x: queries or keys, any float dtype.
      positions: int32 absolute positions >= 0; a leading axis of 1 serves all rows of `x`.
      channels: number of channels that rotate, even, in 0..k; None: all `k`.
      base: at least 1; the slowest pair turns by about 1 / base radians per token.
      scaling: scaling of the frequencies, for texts longer than in training.
      interleaved: which channels form a pair (see above).
      lengths: factor of each pair at each position, float32, such as in `xpos.py`; None: 1.

    Returns:
      The rotated `x`, same shape and dtype.

    Raises:
      ValueError: `channels` is odd or outside 0..k, or `base` is below 1.
    """
    n = x.shape[-1] if channels is None else channels
    if n % 2 or not 0 <= n <= x.shape[-1]:
        raise ValueError(f"rotary: channels={n} must be an even number in 0..head_dim={x.shape[-1]}")
    if base < 1:
        raise ValueError(f"rotary: base={base} must be at least 1; the usual one is 10000")
    turns = scaling.frequencies(n, base) / (2 * math.pi)
    angle = 2 * math.pi * fractions(positions, turns)[:, :, None, :]
    amplitude = np.float32(scaling.amplitude)
    if lengths is not None:
        amplitude = amplitude * lengths[:, :, None, :]
    cos, sin = jnp.cos(angle) * amplitude, jnp.sin(angle) * amplitude
    rotating = x[..., :n].astype(jnp.float32)
    if interleaved:
        first, second = rotating[..., 0::2], rotating[..., 1::2]
    else:
        first, second = rotating[..., : n // 2], rotating[..., n // 2 :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    rotated = jnp.stack(turned, axis=-1).reshape(rotating.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., n:]], axis=-1)


def fractions(positions: Int[Array, "b t"], turns: np.ndarray) -> Float[Array, "b t pairs"]:
    """`positions * turns` modulo 1, about -1/2 to 1/2, float32 within 2e-7 at every int32 position.

    Turns are split into a multiple of 1 / 2^32, whose product with the position wraps exactly in int32, and a remainder
    below 2^-33, whose product with the position is small enough for float32.

    Args:
      positions: int32; a leading axis of 1 serves all rows.
      turns: turns per position, float64 `(pairs,)`, each between -1/2 and 1/2.
    """
    steps = np.round(turns * TURN)
    rest = (turns - steps / TURN).astype(np.float32)
    wrapped = positions[:, :, None] * jnp.asarray(steps.astype(np.int32))[None, None, :]
    correction = positions.astype(jnp.float32)[:, :, None] * rest[None, None, :]
    return wrapped.astype(jnp.float32) / TURN + correction
