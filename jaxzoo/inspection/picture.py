"""Picture of one example: the tokens that each output depends on, layer by layer, and the norms of the states."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.inspection.capture import capture, shown
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.tasks.continuous_mqar import pair_text
from jaxzoo.utils.figure import TITLE_POINTS, add_legend, panels, save, series_style

MOST_HEADS = 4
"""Largest number of heads of a layer that are drawn; more are averaged."""
COLUMNS = 3
MOST_LABELS = 40
"""Largest number of tokens with labels on the axes."""


class Query(NamedTuple):
    """Position with a target, and the model's answer."""

    position: int
    token: int
    target: int
    answer: int
    probability: float
    sources: tuple[int, ...]
    """Earlier positions of its document that hold the target; for an autoencoder the position itself."""
    reader: int
    """Position whose output is decoded: `position`, or the last one of an autoencoder."""


class Seen(NamedTuple):
    tokens: np.ndarray
    names: list[str]
    """Token labels: ids, or `key=value` and `key?` of pairs."""
    queries: list[Query]
    maps: dict[int, tuple[str, np.ndarray]]
    """Layer -> (`scores` (h, t, t) or `influence` (1, t, t))."""
    norms: dict[int, np.ndarray]
    """Layer -> L2 norm of the mixer's state after each token, (t,), for mixers that stream."""


def look(model: LanguageModel, batch: Batch) -> Seen:
    """Captures the maps and states of the first row of a batch with targets at its positions (`Loaded.example`); no
    states if the row has several documents. Raises `ValueError` if the answer is read from a mean of features."""
    if batch.pooled is not None:
        raise ValueError("the answers of these data are read from a mean of features; there is no query to draw")
    tokens = jnp.asarray(batch.tokens)[:1]
    documents = np.zeros(tokens.shape[1], np.int32) if batch.segment_ids is None else np.asarray(batch.segment_ids[0])
    packed = bool((documents != documents[0]).any())
    known = set(shown(model.config, 1, tokens.shape[1]))
    mixers = [f"layers.{i}.mixer" for i in range(model.config.n_layers)]
    kinds = ["scores" if f"{mixer}.scores" in known else "influence" for mixer in mixers]
    wanted = [f"{mixer}.{kind}" for mixer, kind in zip(mixers, kinds, strict=True)]
    wanted += [name for name in known if name.endswith(".mixer.state") and not packed]
    segment_ids = jnp.asarray(documents)[None] if packed else None
    logits, seen = jax.jit(capture(model, *wanted))(tokens, segment_ids=segment_ids)
    seen = jax.tree.map(lambda x: np.asarray(x[0], np.float64), seen)
    maps, norms = {}, {}
    for i, (mixer, kind) in enumerate(zip(mixers, kinds, strict=True)):
        heads = seen[f"{mixer}.{kind}"]
        heads = heads[None] if heads.ndim == 2 else heads
        maps[i] = kind, heads if len(heads) <= MOST_HEADS else np.abs(heads).mean(0, keepdims=True)
        if f"{mixer}.state" in seen:
            leaves = [leaf for leaf in jax.tree.leaves(seen[f"{mixer}.state"]) if leaf.ndim > 1]
            norms[i] = np.sqrt(sum(np.square(leaf.reshape(len(leaf), -1)).sum(1) for leaf in leaves))
    n_values = model.config.pair_values
    names = [pair_text(token, n_values) if n_values else str(token) for token in tokens[0].tolist()]
    queries = _queries(batch, np.asarray(logits[0]), documents, model.config)
    return Seen(np.asarray(tokens[0]), names, queries, maps, norms)


def draw(seen: Seen, path: Path, *, title: str, labels: Sequence[str] | None = None) -> None:
    """Draws a map per layer and head, and the norms of the states, to a PNG, SVG or PDF. Circles mark the tokens that
    hold the answer of a query. `labels` are the texts of the tokens; None: their ids."""
    texts = seen.names if labels is None else list(labels)
    maps = [
        (f"layer {layer}: {kind}" + (f", head {head}" if len(heads) > 1 else ""), weights)
        for layer, (kind, heads) in seen.maps.items()
        for head, weights in enumerate(heads)
    ]
    count = len(maps) + bool(seen.norms)
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure, grid = panels(rows, columns, size=(4.2 * columns, 0.5 + 4.0 * rows), title=title)
    for (name, weights), axes in zip(maps, grid.flat, strict=False):
        _draw_map(axes, weights, seen.queries, texts, name)
    if seen.norms:
        axes = grid.flat[len(maps)]
        for i, (layer, norm) in enumerate(seen.norms.items()):
            axes.plot(np.arange(1, len(norm) + 1), norm, **(series_style(i) | {"marker": ""}), label=f"layer {layer}")
        axes.set(xlabel="tokens read", ylabel="L2 norm")
        axes.set_title("state of the mixer", fontsize=TITLE_POINTS)
        add_legend(figure)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    save(figure, path)


def table(seen: Seen, labels: Sequence[str] | None = None) -> str:
    """Formats a line per query: position, token, target, answer, probability, and where the last layer attends."""
    names = seen.names if labels is None else labels
    last = max(seen.maps)
    kind, heads = seen.maps[last]
    weight = np.abs(heads).mean(0)
    lines = [
        f"{'position':>8}  {'token':>8}  {'target':>8}  {'answer':>8}  {'p(target)':>9}  largest {kind}, layer {last}"
    ]
    for q in seen.queries:
        place = int(weight[q.reader].argmax())
        found = "the answer's" if place in q.sources else names[place]
        lines.append(
            f"{q.position:>8}  {names[q.position]:>8}  {q.target:>8}  {q.answer:>8}  {q.probability:>9.3f}  "
            f"position {place} ({found})"
        )
    return "\n".join(lines)


def _queries(batch: Batch, logits: np.ndarray, documents: np.ndarray, config: LanguageModelConfig) -> list[Query]:
    tokens, targets = np.asarray(batch.tokens[0]), np.asarray(batch.targets[0])
    held = tokens % (config.pair_values + 1) - 1 if config.pair_values else tokens
    positions = np.arange(len(tokens)) if batch.positions is None else np.asarray(batch.positions[0])
    found = []
    for position, target in sorted(zip(positions.tolist(), targets.tolist(), strict=True)):
        if target == UNLABELLED:
            continue
        row = logits[position].astype(np.float64)
        shifted = np.exp(row - row.max())
        holds = (held[:position] == target) & (documents[:position] == documents[position])
        sources = (position,) if config.decode_last else tuple(np.flatnonzero(holds).tolist())
        reader = len(tokens) - 1 if config.decode_last else position
        probability = float(shifted[target] / shifted.sum())
        found.append(Query(position, int(tokens[position]), target, int(row.argmax()), probability, sources, reader))
    return found


def _draw_map(axes: Any, weights: np.ndarray, queries: Sequence[Query], texts: Sequence[str], title: str) -> None:
    peak = max(float(np.abs(weights).max()), 1e-30)
    signed = weights.min() < -0.02 * peak
    axes.imshow(weights, cmap="RdBu_r" if signed else "Blues", vmin=-peak if signed else 0, vmax=peak, aspect="equal")
    axes.grid(False)
    marks = [(source, q.reader) for q in queries for source in q.sources]
    if marks and len(queries) < len(texts) // 2:  # a language model has a target everywhere
        axes.scatter(*zip(*marks, strict=True), s=30, facecolors="none", edgecolors="#D55E00", linewidths=1.2)
    axes.set(xlabel="token read", ylabel="output at token")
    axes.set_title(title, fontsize=TITLE_POINTS)
    if len(texts) <= MOST_LABELS:
        axes.set_xticks(range(len(texts)), texts, rotation=90, fontsize=5)
        axes.set_yticks(range(len(texts)), texts, fontsize=5)
