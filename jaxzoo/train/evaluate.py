"""Validation on all sets of a data set, overall and by slice."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxzoo.data.base import UNLABELLED, Batch, ValidSet
from jaxzoo.data.statistics.ngram import bits_per_byte
from jaxzoo.train.step import Scores


def evaluate(
    score: Callable[[Batch], Scores],
    valid_sets: Sequence[ValidSet],
    *,
    row_multiple: int,
    bytes_per_token: float | None = None,
) -> dict[str, float]:
    """Metrics of all validation sets.

    `valid/loss` is the mean over labelled positions (nats), `valid/accuracy` the mean over examples of the
    share of hits among the labelled positions of each; `valid/accuracy/pairs=8` the same over the sets of
    that slice. Text adds `valid/bits_per_byte`, by slice too, and `valid/perplexity`.

    Args:
      score: sums over one batch.
      row_multiple: rows of a batch are padded to a multiple of this, and to those of the first batch of
        its set.
      bytes_per_token: of the validation text, the same in every set; or None.
    """
    totals = [
        _sum(jax.device_get([score(batch) for batch in padded_batches(valid_set, row_multiple)]))
        for valid_set in valid_sets
    ]
    overall = _sum(totals)
    loss = overall.nats / overall.labels
    metrics = {"valid/loss": loss, "valid/accuracy": overall.accuracy / overall.examples}
    bits: dict[str, float] = {}
    for key, value in _slices(valid_sets):
        chosen = [t for t, s in zip(totals, valid_sets, strict=True) if s.slices.get(key) == value]
        part = _sum(chosen)
        metrics[f"valid/accuracy/{key}={value}"] = part.accuracy / part.examples
        if bytes_per_token is not None:
            bits[f"valid/bits_per_byte/{key}={value}"] = bits_per_byte(part.nats / part.labels, bytes_per_token)
    if bytes_per_token is not None:
        metrics["valid/bits_per_byte"] = bits_per_byte(loss, bytes_per_token)
        metrics |= bits
        metrics["valid/perplexity"] = math.exp(min(loss, 700.0))
    return metrics


def metric_names(valid_sets: Sequence[ValidSet], bytes_per_token: float | None = None) -> list[str]:
    """The names of what `evaluate` gives, without evaluating anything."""
    slices = [f"{key}={value}" for key, value in _slices(valid_sets)]
    names = ["valid/loss", "valid/accuracy", *(f"valid/accuracy/{each}" for each in slices)]
    if bytes_per_token is not None:
        names += ["valid/bits_per_byte", *(f"valid/bits_per_byte/{each}" for each in slices), "valid/perplexity"]
    return names


def pad_rows(batch: Batch, rows: int) -> Batch:
    """Adds rows without labels, so that every batch of a set has one shape (and one compilation)."""
    missing = rows - batch.tokens.shape[0]
    if missing <= 0:
        return batch

    def pad(x: jax.Array, fill: int = 0) -> jax.Array:
        return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)

    return dataclasses.replace(jax.tree.map(pad, batch), targets=pad(batch.targets, UNLABELLED))


def padded_batches(valid_set: ValidSet, row_multiple: int) -> Iterator[Batch]:
    """The batches of a set, each with as many rows as the first, rounded up to a multiple of `row_multiple`."""
    rows = 0
    for i in range(valid_set.n_batches):
        batch = valid_set.batch(i)
        rows = rows or -(-batch.tokens.shape[0] // row_multiple) * row_multiple
        yield pad_rows(batch, rows)


def _sum(scores: Sequence[Any]) -> Any:
    """`Scores` added up on the host, in double precision and in order."""
    sums: Any = [functools.reduce(operator.add, map(float, column), 0.0) for column in zip(*scores, strict=True)]
    return Scores(*sums)


def _slices(valid_sets: Sequence[ValidSet]) -> list[tuple[str, int]]:
    """Pairs (key, value) of all sets: keys as they come, values of a key rising."""
    keys = list(dict.fromkeys(key for s in valid_sets for key in s.slices))
    return [(key, value) for key in keys for value in sorted({s.slices[key] for s in valid_sets if key in s.slices})]
