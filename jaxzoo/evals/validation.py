"""Validation on all sets of a data set, overall and by slice."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.data.base import UNLABELLED, Batch, ValidSet
from jaxzoo.data.statistics.ngram import bits_per_byte
from jaxzoo.models.adapters import AdaptedBlueprint
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.parallel.rows import place_whole
from jaxzoo.train.config import TrainConfig
from jaxzoo.train.loss import score_targets
from jaxzoo.train.memory import rows_that_fit
from jaxzoo.train.metrics import slices_of
from jaxzoo.train.session import CompiledStep, Session
from jaxzoo.utils.array_typing import Array, Float
from jaxzoo.utils.progress import Report


class Scores(NamedTuple):
    """Sums over one validation batch, float32 scalars."""

    nats: Float[Array, ""]
    """Loss over labelled positions."""
    labels: Float[Array, ""]
    accuracy: Float[Array, ""]
    """Sum over examples of the share of hits among their labelled positions."""
    examples: Float[Array, ""]
    """Number of examples with a label."""


class Validation:
    """Validation sets of a session, and compiled steps that score them. For use inside `jax.set_mesh`."""

    def __init__(self, session: Session):
        self._session = session
        blueprint, train = session.blueprint, session.config.train
        self.eval_step: CompiledStep = session.scoring(make_eval_step(blueprint, train))
        self._target_nats_step = session.scoring(make_target_nats_step(blueprint, train))
        self._rows_at_once: dict[Any, int] = {}

    def evaluate(self, variables: Variables, report: Report | None = None) -> dict[str, float]:
        """Returns the metrics of `evaluate` for variables with any sharding; `report` gets the progress."""
        session = self._session
        placed = jax.device_put(variables, session.state_shardings.variables)
        return evaluate(
            lambda batch: jax.tree.map(lambda *x: sum(x[1:], x[0]), *self._parts(self.eval_step, placed, batch)),
            session.dataset.valid(),
            row_multiple=session.row_devices,
            bytes_per_token=session.dataset.bytes_per_token,
            report=report,
        )

    def target_nats(self, variables: Variables) -> Iterator[tuple[Batch, Float[Array, "b m"]]]:
        """Yields the batches of all validation sets, and the nats of each target; variables may have any sharding. The
        last batch of a set may end with rows without labels. The nats are computed asynchronously."""
        session = self._session
        placed = jax.device_put(variables, session.state_shardings.variables)
        for valid_set in session.dataset.valid():
            for batch in padded_batches(valid_set, session.row_devices):
                parts = self._parts(self._target_nats_step, placed, batch)
                yield batch, parts[0] if len(parts) == 1 else jnp.concatenate(parts)[: batch.tokens.shape[0]]

    def _parts(self, step: CompiledStep, variables: Variables, batch: Batch) -> list[Any]:
        """Sums over a batch, computed in as many parts as fit into memory, nearly always one."""
        session = self._session
        rows = batch.tokens.shape[0]

        def placed(start: int, n: int) -> Batch:
            part = batch if n == rows else pad_rows(jax.tree.map(lambda x: x[start : start + n], batch), n)
            return place_whole(part, session.row_sharding)

        key = id(step), batch.tokens.shape
        if (n := self._rows_at_once.get(key, 0)) == 0:
            devices = session.mesh.local_devices
            n = rows_that_fit(lambda n: step.compile(variables, placed(0, n)), rows, devices, session.row_devices)
            self._rows_at_once[key] = n
        return [step(variables, placed(start, n)) for start in range(0, rows, n)]


def evaluate(
    score: Callable[[Batch], Scores],
    valid_sets: Sequence[ValidSet],
    *,
    row_multiple: int,
    bytes_per_token: float | None = None,
    report: Report | None = None,
) -> dict[str, float]:
    """Returns the metrics of all validation sets. `valid/loss` is the mean over labelled positions (nats),
    `valid/accuracy` the mean over examples of the share of hits among their labelled positions;
    `valid/accuracy/pairs=8` the same over the sets of that slice. Text adds `valid/bits_per_byte`, also by slice, and
    `valid/perplexity`. `score` returns the sums over a batch, whose rows are padded to a multiple of `row_multiple` and
    to the size of the set's first batch. `report`, called after each batch, waits for it."""
    n = sum(valid_set.n_batches for valid_set in valid_sets)
    n_done = 0
    totals = []
    for valid_set in valid_sets:
        scores = []
        for batch in padded_batches(valid_set, row_multiple):
            scores.append(score(batch))
            n_done += 1
            if report is not None:
                report(f"loss {float(scores[-1].nats) / max(float(scores[-1].labels), 1.0):.3f}", n_done, n)
        totals.append(_sum(jax.device_get(scores)))
    overall = _sum(totals)
    loss = overall.nats / overall.labels
    metrics = {"valid/loss": loss, "valid/accuracy": overall.accuracy / overall.examples}
    bits: dict[str, float] = {}
    for key, value in slices_of(valid_sets):
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


def metrics_table(metrics: Mapping[str, float], guessing: Mapping[str, float] | None = None) -> str:
    """Formats validation metrics as two columns, slices after the whole, next to the accuracy of guessing if known."""
    rows = [(name.removeprefix("valid/"), value) for name, value in metrics.items() if name.startswith("valid/")]
    width = max(len(name) for name, _ in rows)
    lines = (guessing or {}).get
    notes = [f"  (guessing: {line:.4f})" if (line := lines(f"valid/{name}")) is not None else "" for name, _ in rows]
    return "\n".join(f"  {name:<{width}}  {value:.4f}{note}" for (name, value), note in zip(rows, notes, strict=True))


def progress_note(step: int, train: TrainConfig) -> str:
    """Describes a checkpoint: `checkpoint 800`, or `checkpoint 300 of 800, unfinished`."""
    unfinished = 0 < step < train.steps and not train.stop_at_accuracy  # step 0: imported
    return f"checkpoint {step} of {train.steps}, unfinished" if unfinished else f"checkpoint {step}"


def pad_rows(batch: Batch, rows: int) -> Batch:
    """Adds rows without labels, so that every batch of a set has one shape (and one compilation)."""
    missing = rows - batch.tokens.shape[0]
    if missing <= 0:
        return batch

    def pad(x: jax.Array, fill: int = 0) -> jax.Array:
        return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)

    return dataclasses.replace(jax.tree.map(pad, batch), targets=pad(batch.targets, UNLABELLED))


def padded_batches(valid_set: ValidSet, row_multiple: int) -> Iterator[Batch]:
    """Yields the batches of a set, with the first one's number of rows rounded up to a multiple of `row_multiple`."""
    rows = 0
    for i in range(valid_set.n_batches):
        batch = valid_set.batch(i)
        rows = rows or -(-batch.tokens.shape[0] // row_multiple) * row_multiple
        yield pad_rows(batch, rows)


def _sum(scores: Sequence[Any]) -> Any:
    """Adds up `Scores` on the host, in double precision and in order."""
    sums: Any = [functools.reduce(operator.add, map(float, column), 0.0) for column in zip(*scores, strict=True)]
    return Scores(*sums)


def make_eval_step(
    blueprint: Blueprint | AdaptedBlueprint, config: TrainConfig
) -> Callable[[Variables, Batch], Scores]:
    """Returns `eval_step(variables, batch) -> Scores`, without dropout; rows without labels (padding) do not count."""

    def eval_step(variables: Variables, batch: Batch) -> Scores:
        scores = score_targets(blueprint.model(variables), batch, chunk=config.loss_chunk)
        labels = jnp.sum(scores.labelled, axis=1, dtype=jnp.float32)
        accuracy = jnp.sum(scores.hits, axis=1, dtype=jnp.float32) / jnp.maximum(labels, 1.0)
        examples = jnp.sum(labels > 0, dtype=jnp.float32)
        return Scores(jnp.sum(scores.nats), jnp.sum(labels), jnp.sum(accuracy), examples)

    return eval_step


def make_target_nats_step(
    blueprint: Blueprint | AdaptedBlueprint, config: TrainConfig
) -> Callable[[Variables, Batch], Float[Array, "b m"]]:
    """Returns `target_nats_step(variables, batch) -> nats`, without dropout: `-log p` of each target, float32, 0 if it
    is `UNLABELLED`."""

    def target_nats_step(variables: Variables, batch: Batch) -> Float[Array, "b m"]:
        return score_targets(blueprint.model(variables), batch, chunk=config.loss_chunk).nats

    return target_nats_step
