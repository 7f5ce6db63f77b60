"""Cross-entropy of targets from logits, and its gradient; the vocabulary may be sharded."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.data.base import UNLABELLED
from jaxzoo.utils.array_typing import Array, Bool, Float, Int
from pallas_kernels.dispatch import may_run_on


class TokenScores(NamedTuple):
    """Scores of each target; the first three are 0 or False at positions without a label."""

    nats: Float[Array, "b m"]
    """`-log p(target)`."""
    log_normalizer: Float[Array, "b m"]
    """`log sum exp` of the logits, which the z-loss keeps near 0."""
    hits: Bool[Array, "b m"]
    """Whether the target is the `argmax` of the logits."""
    labelled: Bool[Array, "b m"]
    """Which targets count."""


class VocabularyPart(NamedTuple):
    """Rows of the vocabulary on a device, inside a `shard_map`."""

    axes: tuple[str, ...] = ()
    """Mesh axes over which the rows are sharded; none: each device has all."""
    first_row: int | Int[Array, ""] = 0


WHOLE = VocabularyPart()


def cross_entropy(
    logits: Float[Array, "b m vocab"], targets: Int[Array, "b m"], part: VocabularyPart = WHOLE
) -> TokenScores:
    """Scores of targets, ids or `UNLABELLED`, by float32 logits of a part of the vocabulary."""
    return softmax(logits, targets, part)[0]


def softmax(logits: Array, targets: Array, part: VocabularyPart) -> tuple[TokenScores, Array, Array]:
    """Scores of targets, with unnormalised probabilities and their sum (b, m) for the gradient."""
    labelled = targets != UNLABELLED
    ids = jnp.where(labelled, targets, jnp.zeros_like(targets))
    rows = (rows_at_once if may_run_on("cuda") else rows_by_passes)(logits, ids - part.first_row)
    peak, total, picked = rows
    if part.axes:
        peak = jax.lax.pmax(peak, part.axes)
        total = jax.lax.psum(total * jnp.exp(rows.peak - peak), part.axes)
        picked = jax.lax.psum(picked, part.axes)
    vocabulary = logits.shape[-1] * (jax.lax.axis_size(part.axes) if part.axes else 1)
    picked = jnp.where(ids < vocabulary, picked, jnp.full_like(picked, jnp.nan))
    log_normalizer = jnp.log(total) + peak
    zeros = jnp.zeros_like(peak)
    nats = jnp.where(labelled, log_normalizer - picked, zeros)
    hits = labelled & (picked >= peak)
    scores = TokenScores(nats, jnp.where(labelled, log_normalizer, zeros), hits, labelled)
    return scores, jnp.exp(logits - peak[:, :, None]), total


class _Rows(NamedTuple):
    """Statistics of a device's columns of logits, (b, m) each, from which scores are computed."""

    peak: Array
    """The largest logit; increased to the next number if a column before the target has it: the target then misses."""
    total: Array
    """Sum of exp(logit - peak)."""
    picked: Array
    """The logit of the target; 0 if it is not in these columns."""


def rows_by_passes(logits: Float[Array, "b m vocab"], columns: Int[Array, "b m"]) -> _Rows:
    """Several passes, which a CPU vectorizes (`argmax` costs as much as the head); a TPU keeps logits on its chip."""
    is_before = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) < columns[:, :, None]
    peak = jnp.max(jnp.where(is_before, _next_larger(logits), logits), axis=-1)
    total = jnp.sum(jnp.exp(logits - peak[:, :, None]), axis=-1)
    here = (columns >= 0) & (columns < logits.shape[-1])
    chosen = jnp.where(here, columns, jnp.zeros_like(columns))[:, :, None]
    picked = jnp.take_along_axis(logits, chosen, axis=-1)[:, :, 0]
    return _Rows(peak, total, jnp.where(here, picked, jnp.zeros_like(peak)))


def rows_at_once(logits: Float[Array, "b m vocab"], columns: Int[Array, "b m"]) -> _Rows:
    """One pass: on a GPU, reading the logits takes most of the loss's time."""
    tokens = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    zero, one = (jnp.full_like(logits, value) for value in (0, 1))
    least = jnp.full_like(logits, jnp.finfo(logits.dtype).min)  # with -inf, peak - peak would be NaN
    picked = jnp.where(tokens == columns[:, :, None], logits, zero)
    start = (least[0, 0, 0], zero[0, 0, 0], zero[0, 0, 0], jnp.int32(logits.shape[-1]))
    largest, total, picked, first = jax.lax.reduce(
        (jnp.maximum(logits, least), one, picked, tokens), start, _join, (2,)
    )
    peak = jnp.where(first < columns, _next_larger(largest), largest)
    return _Rows(peak, total * jnp.exp(largest - peak), picked)


def _join(x: tuple, y: tuple) -> tuple:
    """(peak, total, picked, first column with the peak) of the union of two sets of columns."""
    peak = jnp.maximum(x[0], y[0])
    total = x[1] * jnp.exp(x[0] - peak) + y[1] * jnp.exp(y[0] - peak)
    x_first = (x[0] > y[0]) | ((x[0] == y[0]) & (x[3] < y[3]))
    return peak, total, x[2] + y[2], jnp.where(x_first, x[3], y[3])


def _next_larger(x: Float[Array, "*d"]) -> Float[Array, "*d"]:
    """The next larger number, for -inf the second smallest; exact for 0 and for sizes of at least 1e-30."""
    finfo = jnp.finfo(x.dtype)
    x = jnp.maximum(x, jnp.full_like(x, finfo.min))
    return x + (jnp.abs(x) * (0.5 * finfo.eps * (1 + finfo.eps)) + finfo.tiny)


def gradient(scores: TokenScores, weights: Array, total: Array, columns: Array, z_loss: float) -> Array:
    """The gradient of `nats + z_loss log_normalizer^2` with respect to the logits; targets are in these columns."""
    scale = (1 + 2 * z_loss * scores.log_normalizer) / total
    scale = jnp.where(scores.labelled, scale, jnp.zeros_like(scale))
    is_target = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 2) == columns[:, :, None]  # never UNLABELLED
    return scale[:, :, None] * weights - is_target.astype(weights.dtype)
