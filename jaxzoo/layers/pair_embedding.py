"""Embedding of tokens that each hold a key and a value, and the head that scores the values.

Zoology's continuous MQAR (HazyResearch/zoology, `ContinuousInputModel` in `zoology/model.py`). E_k and E_v are tables
of random unit vectors, saved and never updated:

    x = W_in [E_k(key), E_v(value)] + b_in   (zeros for E_v if the token has no value)
    logits = (W_out norm(r) + b_out) E_v^T

The norm is the model's final norm. A token is `key (n_values + 1)`, plus `1 + value` if it has a value; no table has a
row per token.

Deviation: initial weights are normal, biases 0; the release draws both uniformly, with the same standard deviation
`1 / sqrt(3 fan_in)`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.embedding import look_up
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import Buffer, buffer
from jaxzoo.utils.array_typing import Array, Float, Int, PRNGKeyArray


class PairEmbedding(nnx.Module):
    """Tables and projections of the module docstring.

    Args:
      n_rows: rows of the table of values, at least `n_values`.
      width: width of the model and of each embedding.
      rngs: the `params` stream is used.
    """

    def __init__(self, n_keys: int, n_values: int, *, n_rows: int, width: int, rngs: nnx.Rngs):
        self.n_keys: int = n_keys
        self.n_values: int = n_values
        self.keys: Buffer = buffer(unit_vectors(rngs.params(), n_keys, width), ("vocab", "embed"))
        self.values: Buffer = buffer(unit_vectors(rngs.params(), n_rows, width), ("vocab", "embed"))
        self.in_proj: nnx.Linear = linear(
            2 * width, width, axes=("embed", None), std=(6 * width) ** -0.5, bias=True, rngs=rngs
        )
        self.out_proj: nnx.Linear = linear(
            width, width, axes=("embed", None), std=(3 * width) ** -0.5, bias=True, rngs=rngs
        )

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Inputs of the layers, float32; NaN for a token outside the vocabulary."""
        key, value = jnp.divmod(tokens, jnp.int32(self.n_values + 1))
        known = (key >= 0) & (key < self.n_keys)
        axes = ("vocab", "embed")
        keys = look_up(self.keys[...], jnp.where(known, key, jnp.full_like(key, self.n_keys)), axes)
        values = look_up(self.values[...], jnp.maximum(value - 1, 0), axes)
        values = jnp.where(value[:, :, None] > 0, values, jnp.zeros_like(values))
        return self.in_proj(jnp.concatenate([keys, values], axis=-1))


def unit_vectors(key: PRNGKeyArray, n: int, width: int) -> Float[Array, "n d"]:
    """Rows distributed uniformly on the unit sphere."""
    rows = jax.random.normal(key, (n, width))
    return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
