"""Cross-entropy of the targets of a batch, chunk by chunk: per target, or summed with its gradient."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.mixers.base import Losses
from jaxzoo.models.head import project
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.parallel.sharding import mesh_axes, partition_spec
from jaxzoo.train.cross_entropy import TokenScores, VocabularyPart, cross_entropy, gradient, softmax
from jaxzoo.utils.array_typing import Array, Float, Int, PRNGKeyArray
from pallas_kernels.dispatch import may_run_on


class Totals(NamedTuple):
    """Sums over the labelled targets of a batch, float32 scalars."""

    nats: Float[Array, ""]
    squares: Float[Array, ""]
    """Sum of the squares of `log_normalizer`."""
    hits: Float[Array, ""]


def score_targets(model: LanguageModel, batch: Batch, *, chunk: int = 0) -> TokenScores:
    """Scores of the batch's targets.

    At `positions`, if the batch has them, features are gathered before the head; in a `pooled` batch the head reads a
    mean of features. `chunk`: targets of a row whose logits exist at once, (b, chunk, vocab); 0: all.
    """
    features, _ = _features(model, batch, None)
    if not 0 < chunk < batch.targets.shape[1]:
        return cross_entropy(model.logits(features), batch.targets)
    return _on_mesh(_scores, features, model, batch.targets, chunk)


def sum_of_losses(
    model: LanguageModel, batch: Batch, key: PRNGKeyArray | None, *, chunk: int = 0, z_loss: float = 0.0
) -> tuple[Float[Array, ""], Totals, Losses]:
    """Loss of training.

    The gradient is computed together with the sum, so that logits are computed once, not saved, and multiplied in the
    compute dtype. With `positions`, both equal those of a head at all positions where the others are unlabelled.

    Args:
      model, batch, chunk: as in `score_targets`.
      key: enables dropout and other noise.
      z_loss: weight of the squares.

    Returns:
      `nats + z_loss squares` of the totals; the totals, without a gradient; additional losses of the mixers.
    """
    features, losses = _features(model, batch, key)
    loss, totals = _on_mesh(_sums, features, model, batch.targets, chunk, z_loss)
    return loss, jax.lax.stop_gradient(totals), losses


def _features(model: LanguageModel, batch: Batch, key: PRNGKeyArray | None) -> tuple[Float[Array, "b m d"], Losses]:
    features, losses = model.features_with_losses(batch.tokens, segment_ids=batch.segment_ids, key=key)
    if batch.pooled is not None:
        features = _mean_of_first(features, batch.pooled)
    elif batch.positions is not None:
        features = jnp.take_along_axis(features, batch.positions[:, :, None], axis=1)
    return features, losses


def _mean_of_first(features: Float[Array, "b t d"], counts: Int[Array, "b"]) -> Float[Array, "b 1 d"]:
    """Mean over the first `counts` features of each row, summed in float32; 0 for rows without features."""
    inside = jnp.arange(features.shape[1])[None, :] < counts[:, None]
    total = jnp.sum(features, axis=1, keepdims=True, where=inside[:, :, None], dtype=jnp.float32)
    return (total / jnp.maximum(counts, 1).astype(jnp.float32)[:, None, None]).astype(features.dtype)


class _Head(NamedTuple):
    """Static settings of the computation from features to scores."""

    chunk: int
    n_outputs: int
    soft_cap: float
    z_loss: float = 0.0
    rows: tuple[str, ...] = ()
    """Mesh axes over which the rows of the table are sharded."""
    columns: tuple[str, ...] = ()
    """Mesh axes over which its columns are sharded."""
    targets: tuple[str, ...] = ()
    """Mesh axes over which the targets are sharded, by rows or tokens."""

    def part(self, table: Array) -> VocabularyPart:
        first = jax.lax.axis_index(self.rows) * table.shape[0] if self.rows else 0
        return VocabularyPart(self.rows, first)

    def whole_rows(self, features: Array, table: Array) -> Array:
        """The table's rows in the dtype of the features."""
        table = table.astype(features.dtype)
        return jax.lax.all_gather(table, self.columns, axis=1, tiled=True) if self.columns else table

    def logits(self, features: Array, table: Array, part: VocabularyPart) -> Array:
        return project(features, table, vocab_size=self.n_outputs, soft_cap=self.soft_cap, first_row=part.first_row)


def _on_mesh(
    function: Callable[..., Any],
    features: Float[Array, "b m d"],
    model: LanguageModel,
    targets: Int[Array, "b m"],
    chunk: int,
    z_loss: float = 0.0,
) -> Any:
    """`function(features, table, targets, head)`: `_scores` of shape (b, m), or `_sums`.

    On a mesh each device processes its own targets: the table's columns are gathered once before all chunks, and its
    gradient is reduced once after them, where the compiler would do both for every chunk.
    """
    mesh = jax.sharding.get_abstract_mesh()
    table = model.head_table
    head = _Head(chunk, model.config.n_outputs, model.config.logit_soft_cap, z_loss)
    if mesh.empty or mesh.manual_axes or mesh.size == 1:
        return function(features, table, targets, head)
    rows, columns = (mesh_axes(entry) for entry in partition_spec(table.shape, ("vocab", "embed"), mesh))
    batch, time = (mesh_axes(entry) for entry in partition_spec(targets.shape, ("batch", "time"), mesh))
    chunk = -(-chunk // math.prod(mesh.shape[name] for name in time))
    head = head._replace(chunk=chunk, rows=rows, columns=columns, targets=(*batch, *time))
    spec = PartitionSpec(batch, time)
    return jax.shard_map(
        functools.partial(function, head=head),
        in_specs=(spec, PartitionSpec(rows, columns), spec),
        out_specs=spec if function is _scores else PartitionSpec(),
        check_vma=False,
    )(features, table, targets)


def _in_chunks(x: Array, chunk: int, fill: int) -> Array:
    """(b, m, ...) -> (chunks, b, chunk, ...), padded; one chunk of all m for 0."""
    b, m, *rest = x.shape
    chunk = chunk if 0 < chunk < m else m
    n = -(-m // chunk)
    padded = jnp.pad(x, [(0, 0), (0, n * chunk - m)] + [(0, 0)] * len(rest), constant_values=fill)
    return jnp.swapaxes(padded.reshape(b, n, chunk, *rest), 0, 1)


def _in_place(chunks: Array, m: int) -> Array:
    """(chunks, b, chunk, ...) -> (b, m, ...)."""
    n, b, chunk, *rest = chunks.shape
    return jnp.swapaxes(chunks, 0, 1).reshape(b, n * chunk, *rest)[:, :m]


def _scores(features: Array, table: Array, targets: Array, head: _Head) -> TokenScores:
    part, table = head.part(table), head.whole_rows(features, table)
    chunks = _in_chunks(features, head.chunk, 0), _in_chunks(targets, head.chunk, UNLABELLED)
    scores = jax.lax.map(lambda pair: cross_entropy(head.logits(pair[0], table, part), pair[1], part), chunks)
    return jax.tree.map(lambda x: _in_place(x, targets.shape[1]), scores)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _sums(features: Array, table: Array, targets: Array, head: _Head) -> tuple[Float[Array, ""], Totals]:
    """Loss and totals over all devices, with a gradient that neither recomputes logits nor multiplies in float32."""
    return _sums_forward(features, table, targets, head)[0]


def _sums_forward(features: Array, table: Array, targets: Array, head: _Head) -> tuple[Any, tuple[Array, Array]]:
    part = head.part(table)
    whole = head.whole_rows(features, table)
    product = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)

    def add(carry: tuple[Totals, Array], pair: tuple[Array, Array]) -> tuple[tuple[Totals, Array], Array]:
        totals, d_table = carry
        x, y = pair
        logits = head.logits(x, whole, part)
        if may_run_on("tpu"):  # otherwise both logits and masked logits are written to memory
            logits = jax.lax.optimization_barrier(logits)
        scores, weights, total = softmax(logits, y, part)
        d_logits = gradient(scores, weights, total, y - part.first_row, head.z_loss)
        if head.soft_cap:
            d_logits *= 1 - jnp.square(jnp.maximum(logits / head.soft_cap, -1.0))  # of padding: 0 times 0
        d_logits = d_logits.astype(x.dtype)
        d_table += product(x, d_logits, (((0, 1), (0, 1)), ((), ())))
        d_x = product(d_logits, whole, (((2,), (0,)), ((), ())))
        new = Totals(scores.nats, jnp.square(scores.log_normalizer), scores.hits)
        totals = jax.tree.map(lambda old, x: old + jnp.sum(x, dtype=jnp.float32), totals, new)
        return (totals, d_table), d_x.astype(x.dtype)

    nothing = Totals(*[jnp.zeros(())] * 3), jnp.zeros(whole.shape[::-1])
    chunks = _in_chunks(features, head.chunk, 0), _in_chunks(targets, head.chunk, UNLABELLED)
    (totals, d_table), d_features = jax.lax.scan(add, nothing, chunks)
    d_table = d_table.T  # in the other order, a CPU would transpose the gradients of all logits
    if head.columns:
        d_table = jax.lax.psum_scatter(d_table, head.columns, scatter_dimension=1, tiled=True)
    if head.targets:
        totals = jax.lax.psum(totals, head.targets)
    loss = totals.nats + head.z_loss * totals.squares
    return (loss, totals), (_in_place(d_features, targets.shape[1]), d_table.astype(table.dtype))


def _sums_backward(head: _Head, kept: tuple[Array, Array], cotangents: tuple[Array, Totals]) -> tuple:
    d_loss = cotangents[0]
    others = (*head.targets, *head.rows)
    if others:  # each of these devices has the loss, and a share of its cotangent
        d_loss = jax.lax.psum(d_loss, others)
    return *((d_loss * x.astype(jnp.float32)).astype(x.dtype) for x in kept), None


_sums.defvjp(_sums_forward, _sums_backward)
