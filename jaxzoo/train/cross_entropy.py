"""Cross-entropy of targets from logits, and its gradient, also where a device has some rows of the vocabulary."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.array_typing import Array, Bool, Float, Int
from jaxzoo.data.base import UNLABELLED


class TokenScores(NamedTuple):
    """Scores of each target; the first three are 0 or False where a position has no label."""

    nats: Float[Array, "b m"]
    """`-log p(target)`."""
    log_normalizer: Float[Array, "b m"]
    """`log sum exp` of the logits, which the z-loss keeps near 0."""
    hits: Bool[Array, "b m"]
    """Whether the target is the first of the likeliest tokens, as `argmax` has it."""
    labelled: Bool[Array, "b m"]
    """Which targets count."""


class VocabularyPart(NamedTuple):
    """Which rows of the vocabulary a device of a `shard_map` has."""

    axes: tuple[str, ...] = ()
    """Mesh axes over which the rows are sharded; none: each device has all."""
    first_row: int | Int[Array, ""] = 0


WHOLE = VocabularyPart()


def cross_entropy(
    logits: Float[Array, "b m vocab"], targets: Int[Array, "b m"], part: VocabularyPart = WHOLE
) -> TokenScores:
    """Scores of targets.

    Args:
      logits: float32.
      targets: ids, or `UNLABELLED`.
      part: the rows of the vocabulary that the logits are of.
    """
    return softmax(logits, targets, part)[0]


def softmax(logits: Array, targets: Array, part: VocabularyPart) -> tuple[TokenScores, Array, Array]:
    """Scores of targets, and what the gradient needs: unnormalised probabilities, and their sum (b, m)."""
    labelled = targets != UNLABELLED
    ids = jnp.where(labelled, targets, jnp.zeros_like(targets))
    picked = _pick(logits, ids, part)
    # optax.softmax_cross_entropy_with_integer_labels keeps this maximum to itself: the hits would need one pass more.
    peak = jnp.max(logits, axis=-1)
    if part.axes:
        peak = jax.lax.pmax(peak, part.axes)
    weights = jnp.exp(logits - peak[:, :, None])
    total = jnp.sum(weights, axis=-1)
    total = jax.lax.psum(total, part.axes) if part.axes else total
    hits = (picked >= peak) & ~_ties_before(logits, picked, ids, part)
    log_normalizer, zeros = jnp.log(total) + peak, jnp.zeros_like(peak)
    nats = jnp.where(labelled, log_normalizer - picked, zeros)
    return TokenScores(nats, jnp.where(labelled, log_normalizer, zeros), labelled & hits, labelled), weights, total


def _ties_before(
    logits: Float[Array, "b m vocab"], picked: Float[Array, "b m"], ids: Int[Array, "b m"], part: VocabularyPart
) -> Bool[Array, "b m"]:
    """Whether a token with a lower id has at least this logit. `argmax` would cost as much as the head on a CPU."""
    tokens = part.first_row + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    tied = jnp.any((tokens < ids[:, :, None]) & (logits >= picked[:, :, None]), axis=-1)
    return jax.lax.pmax(tied.astype(jnp.int32), part.axes) > 0 if part.axes else tied


def _pick(logits: Float[Array, "b m vocab"], ids: Int[Array, "b m"], part: VocabularyPart) -> Float[Array, "b m"]:
    """The logits of these tokens; NaN outside of the vocabulary."""
    if not part.axes:
        return jnp.take_along_axis(logits, ids[:, :, None], axis=-1)[:, :, 0]
    n = logits.shape[-1]
    here = ids - part.first_row
    found = (here >= 0) & (here < n)
    picked = jnp.take_along_axis(logits, jnp.where(found, here, jnp.zeros_like(here))[:, :, None], axis=-1)[:, :, 0]
    picked = jax.lax.psum(jnp.where(found, picked, jnp.zeros_like(picked)), part.axes)
    return jnp.where(ids < n * jax.lax.axis_size(part.axes), picked, jnp.full_like(picked, jnp.nan))


def gradient(scores: TokenScores, weights: Array, total: Array, columns: Array, z_loss: float) -> Array:
    """The gradient of `nats + z_loss log_normalizer^2` with respect to the logits; targets are in these columns."""
    scale = (1 + 2 * z_loss * scores.log_normalizer) / total
    scale = jnp.where(scores.labelled, scale, jnp.zeros_like(scale))
    is_target = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 2) == columns[:, :, None]  # never UNLABELLED
    return scale[:, :, None] * weights - is_target.astype(weights.dtype)
