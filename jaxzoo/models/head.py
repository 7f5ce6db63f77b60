"""Features to logits, for the whole vocabulary or a device's shard of it."""

import jax
import jax.numpy as jnp

from jaxzoo.parallel.sharding import constrain
from jaxzoo.utils.array_typing import Array, Float, Int

MASKED_LOGIT = -1e30


def project(
    features: Float[Array, "... d"],
    table: Float[Array, "vocab d"],
    *,
    vocab_size: int,
    soft_cap: float = 0.0,
    first_row: int | Int[Array, ""] = 0,
) -> Float[Array, "... vocab"]:
    """Returns float32 logits `soft_cap tanh(logit / soft_cap)` (0: no cap) of features in the compute dtype, to which
    the padded `table` is cast; rows from `vocab_size` on hold -1e30. `first_row` is the index of the table's first row
    on a device."""
    contract = (((features.ndim - 1,), (1,)), ((), ()))
    logits = jax.lax.dot_general(features, table.astype(features.dtype), contract, preferred_element_type=jnp.float32)
    logits = constrain(logits, *("batch", "time")[: logits.ndim - 1], "vocab")
    if soft_cap:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    if isinstance(first_row, int) and first_row + table.shape[0] <= vocab_size:
        return logits
    rows = first_row + jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(rows < vocab_size, logits, jnp.full_like(logits, MASKED_LOGIT))
