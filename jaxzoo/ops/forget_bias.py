"""Score bias of softmax attention with a forget gate: the log gates of all tokens after a key, up to the query.

    bias_ij = sum_{l=j+1..i} g_l      (FoX, Lin et al. 2025, eq. 6: d_ij; the gate of the key's own token is left out)

It is a running sum over the queries of each key, never a difference of two sums from the first token on, whose rounding
error grows with the length of the text.
"""

import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Float, Int


def forget_bias(
    log_gate: Float[Array, "b t h"],
    queries: Int[Array, "#b t"],
    keys: Int[Array, "#b s"],
    carried: Float[Array, "b h s"],
) -> tuple[Float[Array, "b h t s"], Float[Array, "b h s"]]:
    """The equation of the module docstring for `t >= 0` queries, which follow each other.

    Args:
      log_gate: g of the queries' tokens, at most 0, float32.
      queries: positions of the queries; an axis of 1 serves all rows.
      keys: positions of the keys, likewise.
      carried: bias of every key at the token before the queries, 0 for later keys.

    Returns:
      bias, 0 where the key does not come before the query, and `carried` after the last query.
    """
    later = queries[:, :, None] > keys[:, None, :]
    added = jnp.where(later[:, None], log_gate.swapaxes(1, 2)[..., None], jnp.zeros((), jnp.float32))
    bias = carried[:, :, None] + jnp.cumsum(added, axis=2)
    return bias, jnp.concatenate([carried[:, :, None], bias], axis=2)[:, :, -1]
