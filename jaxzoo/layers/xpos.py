"""xPos (Sun et al. 2022, A Length-Extrapolatable Transformer): rotary positions with scores that decay with distance.

Besides the rotation, pair `i` of `n` rotated channels is scaled at position `p`:

    queries by zeta_i^(p / B)        keys by zeta_i^(-p / B)        zeta_i = (2 i / n + gamma) / (1 + gamma)

The product of a query and a key at distance m is `zeta_i^(m / B)` times the rotary one: faster pairs decay more. As in
TorchScale, gamma = 0.4 and B = 512 (`scale_base`), and pair 0 is the fastest.

Deviation: positions are counted from the middle of a fixed range, in which factors stay within 2^-58 and 2^58 (at B =
512: positions 0 to 32860). TorchScale counts from the middle of the current sequence and rotates cached keys again for
every token; scores do not depend on the origin. In the range, factors and their products (also with a future key,
before it is masked) fit float32 and bfloat16; outside it the factor is NaN.
"""

import jax.numpy as jnp
import numpy as np

from jaxzoo.layers.rotary import fractions
from jaxzoo.utils.array_typing import Array, Float, Int

GAMMA = 0.4
"""The paper's gamma, which keeps the fastest pair from decaying at once."""
LARGEST_EXPONENT = 58
"""Factors lie between 2^-58 and 2^58."""


def centre_of(scale_base: float) -> int:
    """Position with factor 1; the last position is twice as far."""
    fastest = -np.log2(GAMMA / (1 + GAMMA))
    return int(min(LARGEST_EXPONENT * scale_base / fastest, 2**30 - 1))


def xpos_factors(
    positions: Int[Array, "b t"], channels: int, *, scale_base: float, keys: bool
) -> Float[Array, "b t pairs"]:
    """Factor of each pair of channels, float32, within 1e-6 of its value.

    Args:
      positions: int32, in `[0, 2 centre_of(scale_base)]`; beyond that the factors are NaN.
      channels: number of rotated channels n, even.
      scale_base: distance B at which pair i decays by zeta_i; at least 16.
      keys: returns the factors of keys instead of queries.

    Raises:
      ValueError: there are more tokens than positions.
    """
    centre, tokens = centre_of(scale_base), positions.shape[1]
    if tokens > 2 * centre + 1:
        raise ValueError(
            f"xPos: {tokens} tokens must be at most {2 * centre + 1}, the positions at xpos_scale_base={scale_base}; "
            "raise it"
        )
    zeta = (2 * np.arange(channels // 2) / channels + GAMMA) / (1 + GAMMA)
    bits = np.log2(zeta) / scale_base * (-1 if keys else 1)
    inside = (positions >= 0) & (positions <= 2 * centre)
    places = jnp.clip(positions, 0, 2 * centre) - centre
    fraction = fractions(places, bits)
    whole = jnp.round(places.astype(jnp.float32)[:, :, None] * bits.astype(np.float32)[None, None, :] - fraction)
    factors = jnp.ldexp(jnp.exp2(fraction), whole.astype(jnp.int32))
    return jnp.where(inside[:, :, None], factors, jnp.nan)
