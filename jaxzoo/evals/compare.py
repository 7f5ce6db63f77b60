"""Comparison of trained models on the same validation sets: scores, paired differences, costs."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.data.base import Batch, Dataset
from jaxzoo.data.statistics.ngram import bits_per_byte
from jaxzoo.evals.validation import padded_batches
from jaxzoo.loading import Loaded
from jaxzoo.models.accounting import count_parameters, state_bytes
from jaxzoo.train.loss import score_targets
from jaxzoo.utils.array_typing import Array
from jaxzoo.utils.figure import add_legend, panels, plain_log_ticks, save, series_style
from jaxzoo.utils.progress import Report
from jaxzoo.utils.text_table import text_table


class RowSums(NamedTuple):
    """Sums over the targets of each row of the validation sets, (rows,) float64."""

    nats: np.ndarray
    targets: np.ndarray
    hits: np.ndarray
    ends: tuple[int, ...]
    """0, and the end row of each set."""
    tokens_per_s: float
    """Tokens read per second, without the first batch of each set, which compiles."""


class Scored(NamedTuple):
    """Scores and costs of a model."""

    name: str
    loss: float
    """Mean over the targets, in nats."""
    loss_error: float
    """Standard error of the loss over the rows."""
    difference: float
    """Loss minus the first model's."""
    difference_error: float
    """Standard error of the difference, paired by rows."""
    accuracy: float
    """Share of targets that are the likeliest token."""
    bits_per_byte: float | None
    """Bits per byte; None if the data are no text."""
    slices: Mapping[str, float]
    """Accuracy by slice, such as `pairs=8`."""
    parameters: int
    state_bytes: int | None
    """State of one sequence of the data's length; None if a mixer does not stream."""
    tokens_per_s: float


def compare(models: Mapping[str, Loaded], data: Dataset, report: Report | None = None) -> list[Scored]:
    """Scores models on the same data; differences are to the first model. Raises `ValueError` if a model has fewer
    ids than the data, is of another kind or has another tokenizer than the first, or no rows are scored."""
    first = next(iter(models.values()))
    for name, loaded in models.items():
        have = loaded.model.config.vocab_size
        need = data.vocab_size
        if have < need:
            raise ValueError(f"{name}: vocab_size={have} must be at least the {need} ids of the data")
        for field in ("decode_last", "pair_values"):
            value, wanted = (getattr(each.model.config, field) for each in (loaded, first))
            if value != wanted:
                raise ValueError(f"{name}: {field}={value} must be the first model's {wanted}, to answer the same data")
        if _fingerprint(loaded) != _fingerprint(first):
            raise ValueError(
                f"{name}: its tokenizer is {_fingerprint(loaded)!r} and the first model's {_fingerprint(first)!r}; "
                "losses of different tokens cannot be compared"
            )
    rows = {name: _score(name, loaded, data, report) for name, loaded in models.items()}
    base = next(iter(rows.values()))
    if not base.targets.sum():
        raise ValueError("the validation sets have no targets to score")
    return [_scored(name, models[name], found, base, data) for name, found in rows.items()]


def table(scored: Sequence[Scored]) -> str:
    """Formats a line per model, then accuracy by slice."""
    is_text = any(s.bits_per_byte is not None for s in scored)
    heads = ["model", "loss", "difference", "accuracy", *(["bits/byte"] if is_text else [])]
    heads += ["parameters", "state bytes", "tokens/s"]
    slices = list(dict.fromkeys(name for s in scored for name in s.slices))
    lines = [[*heads, *slices]]
    for i, s in enumerate(scored):
        change = "" if i == 0 else f"{s.difference:+.4f} ± {s.difference_error:.4f}"
        line = [s.name, f"{s.loss:.4f} ± {s.loss_error:.4f}", change, f"{s.accuracy:.4f}"]
        line += [f"{s.bits_per_byte:.4f}"] if s.bits_per_byte is not None else []
        line += [f"{s.parameters:,}", "" if s.state_bytes is None else f"{s.state_bytes:,}", f"{s.tokens_per_s:,.0f}"]
        lines.append([*line, *(f"{s.slices[name]:.4f}" if name in s.slices else "" for name in slices)])
    return text_table(lines)


def draw(scored: Sequence[Scored], path: Path) -> None:
    """Draws loss with standard errors, and accuracy by slice (or overall) over state bytes."""
    figure, ((left, right),) = panels(1, 2, size=(10, 4.2), title="models compared on the same validation sets")
    for i, s in enumerate(scored):
        style = series_style(i) | {"linestyle": "none"}
        left.errorbar([i], [s.loss], yerr=[1.96 * s.loss_error], capsize=3, label=s.name, **style)
        right.plot([s.state_bytes or math.nan], [s.accuracy], label=s.name, **style)
    left.set(ylabel="loss (nats per target), 95 % interval", xticks=[], xlim=(-0.5, len(scored) - 0.5))
    right.set(xlabel="state bytes per sequence", ylabel="accuracy", ylim=(-0.02, 1.02))
    if any(s.state_bytes for s in scored):
        plain_log_ticks(right, "x")
    add_legend(figure)
    save(figure, path)


def _fingerprint(loaded: Loaded) -> str:
    return "" if loaded.tokenizer is None else loaded.tokenizer.fingerprint


def _score(name: str, loaded: Loaded, data: Dataset, report: Report | None) -> RowSums:
    graph, variables = nnx.split(loaded.model)

    @jax.jit
    def score(variables: Any, batch: Batch) -> tuple[Array, ...]:
        scores = score_targets(nnx.merge(graph, variables), batch)
        return tuple(jnp.sum(x, axis=1, dtype=jnp.float32) for x in (scores.nats, scores.labelled, scores.hits))

    parts = []
    n_batches = sum(valid.n_batches for valid in data.valid())
    ends = [0]
    timed = 0
    seconds = 0.0
    for valid in data.valid():
        ends.append(ends[-1])
        for i, batch in enumerate(padded_batches(valid, 1)):
            start = time.monotonic()
            parts.append([np.asarray(x, np.float64) for x in score(variables, batch)])
            ends[-1] += len(batch.tokens)
            if report is not None:
                nats, targets, _ = parts[-1]
                report(f"{name}: loss {nats.sum() / max(targets.sum(), 1):.3f}", len(parts), n_batches)
            if i:
                seconds = seconds + time.monotonic() - start
                timed = timed + batch.tokens.size
    nats, targets, hits = (np.concatenate(column) for column in zip(*parts, strict=True))
    return RowSums(nats, targets, hits, tuple(ends), timed / seconds if timed else math.nan)


def _scored(name: str, loaded: Loaded, rows: RowSums, first: RowSums, data: Dataset) -> Scored:
    total, real = rows.targets.sum(), rows.targets > 0  # the last batch of a set may be padded
    loss = float(rows.nats.sum() / total)
    difference = loss - float(first.nats.sum() / total)
    config = loaded.model.config
    return Scored(
        name=name,
        loss=loss,
        loss_error=_error((rows.nats - loss * rows.targets)[real], total),
        difference=difference,
        difference_error=_error((rows.nats - first.nats - difference * rows.targets)[real], total),
        accuracy=float(rows.hits.sum() / total),
        bits_per_byte=None if data.bytes_per_token is None else bits_per_byte(loss, data.bytes_per_token),
        slices=_by_slice(rows, data),
        parameters=count_parameters(loaded.model),
        state_bytes=state_bytes(config, data.max_length) if config.streams else None,
        tokens_per_s=rows.tokens_per_s,
    )


def _error(sums: np.ndarray, targets: float) -> float:
    """Returns the standard error of a mean over the targets (a ratio estimator) from residual sums of each row."""
    n = len(sums)
    return float(np.sqrt(n) * sums.std(ddof=1) / targets) if n > 1 else math.nan


def _by_slice(rows: RowSums, data: Dataset) -> dict[str, float]:
    """Returns the accuracy of each slice, without the overall accuracy."""
    parts = [slice(*ends) for ends in itertools.pairwise(rows.ends)]
    totals: dict[str, tuple[float, float]] = {}
    for valid, part in zip(data.valid(), parts, strict=True):
        for key, value in valid.slices.items():
            hits, targets = totals.setdefault(f"{key}={value}", (0.0, 0.0))
            totals[f"{key}={value}"] = hits + rows.hits[part].sum(), targets + rows.targets[part].sum()
    return {name: float(hits / targets) for name, (hits, targets) in totals.items()} if len(parts) > 1 else {}
