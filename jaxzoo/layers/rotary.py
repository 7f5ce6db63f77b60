"""Rotary position embedding (Su et al. 2021, RoFormer, eq. 15), exact at any position.

Convention: half-rotation (GPT-NeoX, Llama), where channel `i` pairs with channel `i + n / 2` of the `n`
rotated ones; pair `i` at position `p` turns by `p * base^(-2 i / n)` radians. The remaining channels pass
through.

Deviation: the angle is not the float32 product of position and frequency, whose error reaches 4e-3 radians at
position 100,000. See `_angles`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Float, Int

TURN = 2.0**32
"""Integer phase of one full turn: int32 arithmetic wraps exactly there."""


def rotary(
    x: Float[Array, "b t h k"],
    positions: Int[Array, "b t"],
    *,
    channels: int | None = None,
    base: float = 10000.0,
) -> Float[Array, "b t h k"]:
    """Rotates the first `channels` channels of every head by angles proportional to the position.

    Scores of rotated queries and keys depend on the difference of their positions only. Computes in float32.

    Args:
      x: queries or keys, any float dtype.
      positions: int32 absolute positions >= 0; a leading axis of 1 serves all rows of `x`.
      channels: how many rotate, an even number in 0..k; None: all `k`.
      base: at least 1; the slowest pair turns by about 1 / base radians a token.

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
    angle = _angles(positions, n, base)[:, :, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    rotating = x[..., :n].astype(jnp.float32)
    first, second = rotating[..., : n // 2], rotating[..., n // 2 :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., n:]], axis=-1)


def _angles(positions: Int[Array, "b t"], n: int, base: float) -> jax.Array:
    """Angles modulo a turn, float32 `(b, t, n / 2)`, within 1e-6 radians at every int32 position.

    A frequency in turns is split into a multiple of 1 / 2^32, whose product with the position wraps exactly
    in int32, and a rest below 2^-33, whose product with the position is small enough for float32.
    """
    turns = base ** (-np.arange(0, n, 2) / n) / (2 * math.pi)
    steps = np.round(turns * TURN)
    rest = (turns - steps / TURN).astype(np.float32)
    wrapped = positions[:, :, None] * jnp.asarray(steps.astype(np.int32))[None, None, :]
    correction = positions.astype(jnp.float32)[:, :, None] * rest[None, None, :]
    return 2 * math.pi * (wrapped.astype(jnp.float32) / TURN + correction)
