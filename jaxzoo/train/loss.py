"""Cross-entropy of the targets of a batch, optionally without all logits in memory at once."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxzoo.array_typing import Array, Bool, Float, Int, PRNGKeyArray
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.mixers.base import Losses
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.head import project
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.sharding import mesh_axes, partition_spec
from pallas_kernels.dispatch import may_run_on


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


def score_targets(
    model: LanguageModel, batch: Batch, key: PRNGKeyArray | None = None, *, chunk: int = 0
) -> tuple[TokenScores, Losses]:
    """Scores of the batch's targets, and what the mixers add to the training loss.

    Where the batch names `positions`, features are gathered there before the head: the head is most of a
    recall task's work, and answers stand at few positions. Loss and gradients are those of the head at all
    positions with the others unlabelled. Where it is `pooled`, the head reads a mean of features.

    Args:
      model: computes features and logits.
      batch: tokens and targets.
      key: turns on what is random in training.
      chunk: targets of a row whose logits exist at once, in the backward pass too, which computes them again; the
        largest array is then (b, chunk, vocab). 0: all m.
    """
    features, losses = model.features_with_losses(batch.tokens, segment_ids=batch.segment_ids, key=key)
    if batch.pooled is not None:
        features = _mean_of_first(features, batch.pooled)
    elif batch.positions is not None:
        features = jnp.take_along_axis(features, batch.positions[:, :, None], axis=1)
    if not 0 < chunk < batch.targets.shape[1]:
        return cross_entropy(model.logits(features), batch.targets), losses
    return _score_in_chunks(features, model.head_table, batch.targets, chunk, model.config), losses


def _mean_of_first(features: Float[Array, "b t d"], counts: Int[Array, "b"]) -> Float[Array, "b 1 d"]:
    """Mean over the first `counts` features of each row, summed in float32; 0 where there are none."""
    inside = jnp.arange(features.shape[1])[None, :] < counts[:, None]
    total = jnp.sum(features, axis=1, keepdims=True, where=inside[:, :, None], dtype=jnp.float32)
    return (total / jnp.maximum(counts, 1).astype(jnp.float32)[:, None, None]).astype(features.dtype)


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
    labelled = targets != UNLABELLED
    ids = jnp.where(labelled, targets, jnp.zeros_like(targets))
    picked, log_normalizer, first = _picked_and_normalizer(
        logits, ids, jnp.asarray(part.first_row, jnp.int32), part.axes
    )
    zeros = jnp.zeros_like(picked)
    return TokenScores(
        jnp.where(labelled, log_normalizer - picked, zeros),
        jnp.where(labelled, log_normalizer, zeros),
        labelled & first,
        labelled,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _picked_and_normalizer(
    logits: Float[Array, "b m vocab"], ids: Int[Array, "b m"], first_row: Int[Array, ""], axes: tuple[str, ...]
) -> tuple[Float[Array, "b m"], Float[Array, "b m"], Bool[Array, "b m"]]:
    """The logits of the ids, `log sum exp`, and whether the id is the first of the likeliest tokens.

    The gradient is one pass over the logits. JAX's own makes three arrays of their size: one for the sum, one of zeros
    into which a scatter writes, and the sum of both.
    """
    return _forward(logits, ids, first_row, axes)[0]


def _forward(logits: Array, ids: Array, first_row: Array, axes: tuple[str, ...]) -> tuple[tuple, tuple]:
    part = VocabularyPart(axes, first_row)
    picked = _pick(logits, ids, part)
    # optax.softmax_cross_entropy_with_integer_labels keeps this maximum to itself: the hits would need one pass more.
    peak = jnp.max(logits, axis=-1)
    if axes:
        peak = jax.lax.pmax(peak, axes)
    weights = jnp.exp(logits - peak[:, :, None])
    total = jnp.sum(weights, axis=-1)
    total = jax.lax.psum(total, axes) if axes else total
    hits = (picked >= peak) & ~_ties_before(logits, picked, ids, part)
    # A CPU reads the weights again in less time than it computes them; elsewhere an array less is written.
    kept = weights if may_run_on("cpu") else logits
    return (picked, jnp.log(total) + peak, hits), (kept, peak, total, ids - first_row)


def _backward(axes: tuple[str, ...], kept: tuple, cotangents: tuple) -> tuple[Array, None, None]:
    weights, peak, total, columns = kept
    d_picked, d_normalizer = (jax.lax.psum(x, axes) if axes else x for x in cotangents[:2])
    if not may_run_on("cpu"):
        weights = jnp.exp(weights - peak[:, :, None])
    is_picked = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 2) == columns[:, :, None]
    own = jnp.where(is_picked, d_picked[:, :, None], jnp.zeros((1, 1, 1)))
    return (d_normalizer / total)[:, :, None] * weights + own, None, None


_picked_and_normalizer.defvjp(_forward, _backward)


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


def _score_in_chunks(
    features: Float[Array, "b m d"],
    table: Float[Array, "vocab d"],
    targets: Int[Array, "b m"],
    chunk: int,
    config: LanguageModelConfig,
) -> TokenScores:
    """Scores of `chunk` targets of each row after the other.

    On a mesh each device goes through its own: the table's columns are gathered once before, and its gradient is summed
    over devices once after, where the compiler would do so for every chunk.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes or mesh.size == 1:
        return _in_turn(features, table, targets, chunk, config, WHOLE)
    rows, columns = (mesh_axes(entry) for entry in partition_spec(table.shape, ("vocab", "embed"), mesh))
    batch, time = (mesh_axes(entry) for entry in partition_spec(targets.shape, ("batch", "time"), mesh))
    chunk = -(-chunk // math.prod(mesh.shape[name] for name in time))

    def local(features: Array, table: Array, targets: Array) -> TokenScores:
        first = jax.lax.axis_index(rows) * table.shape[0] if rows else 0
        if columns:
            table = jax.lax.all_gather(table, columns, axis=1, tiled=True)
        return _in_turn(features, table, targets, chunk, config, VocabularyPart(rows, first))

    spec = PartitionSpec(batch, time)
    return jax.shard_map(local, in_specs=(spec, PartitionSpec(rows, columns), spec), out_specs=spec, check_vma=False)(
        features, table, targets
    )


def _in_turn(
    features: Array, table: Array, targets: Array, chunk: int, config: LanguageModelConfig, part: VocabularyPart
) -> TokenScores:
    """Scores of one chunk after the other, on one device."""

    @jax.checkpoint
    def score(features_bcd: Array, targets_bc: Array) -> TokenScores:
        cap, first = config.logit_soft_cap, part.first_row
        logits = project(features_bcd, table, vocab_size=config.n_outputs, soft_cap=cap, first_row=first)
        return cross_entropy(logits, targets_bc, part)

    b, m = targets.shape
    chunks = _in_chunks(features, chunk, 0), _in_chunks(targets, chunk, UNLABELLED)
    scores = jax.lax.map(lambda pair: score(*pair), chunks)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(b, -1)[:, :m], scores)


def _in_chunks(x: Array, chunk: int, fill: int) -> Array:
    """(b, m, ...) -> (chunks, b, chunk, ...), filled up."""
    b, m, *rest = x.shape
    n = -(-m // chunk)
    padded = jnp.pad(x, [(0, 0), (0, n * chunk - m)] + [(0, 0)] * len(rest), constant_values=fill)
    return jnp.swapaxes(padded.reshape(b, n, chunk, *rest), 0, 1)
