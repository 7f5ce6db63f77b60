"""What a model pays for the targets of a batch, without all of its logits in memory at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.array_typing import Array, Bool, Float, Int, PRNGKeyArray
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.mixers.base import Losses
from jaxzoo.models.language_model import LanguageModel


class TokenScores(NamedTuple):
    """How each target is predicted; the first three are 0 or False where there is none."""

    nats: Float[Array, "b m"]
    """`-log p(target)`."""
    log_normalizer: Float[Array, "b m"]
    """`log sum exp` of the logits, which the z-loss keeps near 0."""
    hits: Bool[Array, "b m"]
    """No token is likelier."""
    labelled: Bool[Array, "b m"]
    """Which targets count."""


def score_targets(
    model: LanguageModel, batch: Batch, key: PRNGKeyArray | None = None, *, chunk: int = 0
) -> tuple[TokenScores, Losses]:
    """Scores of the batch's targets, and what the mixers add to the training loss.

    Where the batch names `positions`, features are gathered there before the head: the head is most of a
    recall task's work, and answers stand at few positions. Loss and gradients are those of the head at all
    positions with the others unlabelled.

    Args:
      model: computes features and logits.
      batch: tokens and targets.
      key: turns on what is random in training.
      chunk: targets of a row whose logits exist at once, in the backward pass too, which computes them again; the
        largest array is then (b, chunk, vocab). 0: all m.
    """
    features, losses = model.features_with_losses(batch.tokens, segment_ids=batch.segment_ids, key=key)
    if batch.positions is not None:
        features = jnp.take_along_axis(features, batch.positions[:, :, None], axis=1)
    m = batch.targets.shape[1]
    if not 0 < chunk < m:
        return cross_entropy(model.logits(features), batch.targets), losses
    chunks = _in_chunks(features, chunk, 0), _in_chunks(batch.targets, chunk, UNLABELLED)

    @jax.checkpoint
    def score(features_bcd: Array, targets_bc: Array) -> TokenScores:
        return cross_entropy(model.logits(features_bcd), targets_bc)

    scores = jax.lax.map(lambda pair: score(*pair), chunks)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(x.shape[1], -1)[:, :m], scores), losses


def cross_entropy(logits: Float[Array, "b m vocab"], targets: Int[Array, "b m"]) -> TokenScores:
    """Scores of targets.

    Args:
      logits: float32.
      targets: ids, or `UNLABELLED`.
    """
    labelled = targets != UNLABELLED
    wanted = jnp.where(labelled, targets, jnp.zeros_like(targets))
    picked = jnp.take_along_axis(logits, wanted[:, :, None], axis=-1)[:, :, 0]
    # optax.softmax_cross_entropy_with_integer_labels keeps this maximum to itself: the hits would need one pass more.
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    log_normalizer = jnp.log(jnp.sum(jnp.exp(logits - peak[:, :, None]), axis=-1)) + peak
    hits = labelled & (picked >= peak)  # argmax would cost as much as the head on a CPU
    zeros = jnp.zeros_like(picked)
    return TokenScores(
        jnp.where(labelled, log_normalizer - picked, zeros), jnp.where(labelled, log_normalizer, zeros), hits, labelled
    )


def _in_chunks(x: Array, chunk: int, fill: int) -> Array:
    """(b, m, ...) -> (chunks, b, chunk, ...), filled up. A chunk takes every n-th target, so that each device of a mesh
    keeps its own."""
    b, m, *rest = x.shape
    n = -(-m // chunk)
    padded = jnp.pad(x, [(0, 0), (0, n * chunk - m)] + [(0, 0)] * len(rest), constant_values=fill)
    return jnp.moveaxis(padded.reshape(b, chunk, n, *rest), 2, 0)
