"""Softmax attention of some queries to some keys, the dense core that every softmax mixer shares.

Not `jax.nn.dot_product_attention`, whose bfloat16 gradient does not compile under strict dtype promotion.
This form normalises after the weights have met the values, which saves a pass over the scores.
"""

import jax
import jax.numpy as jnp

from jaxzoo.array_typing import Array, Bool, Float


def softmax_attention(
    q: Float[Array, "*batch r t k"],
    k: Float[Array, "*batch s k"],
    v: Float[Array, "*batch s v"],
    *,
    visible: Bool[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    scale: float,
) -> Float[Array, "*batch r t v"]:
    """`softmax(scale * q k^T + bias) v` over the visible keys.

    Scores and softmax are float32, the matmuls take the dtype of `q`. Heads are among the leading axes.

    Args:
      q: queries, `r` heads for each head of keys and values.
      k: keys, dtype of `q`.
      v: values, dtype of `q`.
      visible: which keys a query sees, of the rank of the scores `(*batch, r, t, s)`; axes of 1 are shared.
        Every query sees at least one key; the others are finite.
      bias: added to the scaled scores, float32, shaped likewise.
      scale: factor of the scores.

    Returns:
      Outputs in the dtype of `q`.
    """
    scores = scale * jnp.einsum("...rtk,...sk->...rts", q, k, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(visible, scores, -jnp.inf)
    highest = scores.max(axis=-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(scores - jax.lax.stop_gradient(highest))
    total = weights.sum(axis=-1, keepdims=True)
    y = jnp.einsum("...rts,...sv->...rtv", weights.astype(q.dtype), v, preferred_element_type=jnp.float32)
    return (y / total).astype(q.dtype)
