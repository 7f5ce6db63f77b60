"""Cost and savings of a conversion: loss, recall on text, state and decode speed of a model before and after."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxzoo.config.config_io import Json
from jaxzoo.data.base import Batch, Dataset
from jaxzoo.evals.compare import Scored, compare
from jaxzoo.evals.recall_slices import RecallSums, SliceScore
from jaxzoo.evals.validation import padded_batches
from jaxzoo.generation import generate
from jaxzoo.loading import Loaded
from jaxzoo.train.loss import score_targets
from jaxzoo.utils.array_typing import Array
from jaxzoo.utils.text_table import text_table

DECODED = 64
"""Number of timed decode steps."""


class Measured(NamedTuple):
    """A model at one stage."""

    scored: Scored
    """Scores on the validation sets, paired with the first stage's; bytes of the state at the data's length."""
    recall: Mapping[str, SliceScore]
    """Nats on the recall slices of text (`jaxzoo.evals.recall_slices`), by name; empty for other data."""
    decoded_per_s: float
    """Decode speed of one sequence, tokens/s, at the end of the data's length."""


def measure(models: Mapping[str, Loaded], data: Dataset) -> list[Measured]:
    """Measures the models of a conversion by stage, the original first, on the validation sets of data."""
    return [
        Measured(
            scored,
            {} if data.bytes_per_token is None else recall(models[scored.name], data),
            decode_speed(models[scored.name], data.max_length),
        )
        for scored in compare(models, data)
    ]


def recall(loaded: Loaded, data: Dataset) -> Mapping[str, SliceScore]:
    """Nats of the validation targets of text, separately for repeated bigrams, which could be recalled."""
    graph, variables = nnx.split(loaded.model)

    @jax.jit
    def nats(variables: Any, batch: Batch) -> Array:
        return score_targets(nnx.merge(graph, variables), batch).nats

    sums = RecallSums(None)
    for valid in data.valid():
        for batch in padded_batches(valid, 1):
            sums.add(batch, np.asarray(nats(variables, batch)))
    return sums.sections().slices


def decode_speed(loaded: Loaded, length: int) -> float:
    """Decode steps/s of one sequence, for the last of `length` tokens, without compilation.

    NaN for a model that does not generate, or is too small to measure.
    """
    if loaded.model.config.decode_last or loaded.model.config.pair_values:
        return math.nan
    new = min(DECODED, max(1, length // 2))  # after the prompt's first token; all fit into learned positions
    prompt = [np.arange(max(1, length - new - 1)) % loaded.model.config.vocab_size]

    def seconds(n: int) -> float:
        start = time.monotonic()
        generate(loaded.model, prompt, max_tokens=n)
        return time.monotonic() - start

    for n in (1, new + 1):
        seconds(n)  # compiles
    decoding = min(seconds(new + 1) for _ in range(3)) - min(seconds(1) for _ in range(3))
    return new / decoding if decoding > 0 else math.nan


def report(measured: Sequence[Measured]) -> dict[str, Json]:
    """Returns the measurements by stage, JSON-able."""
    return {
        scored.name: {
            "loss": scored.loss,
            "loss_error": scored.loss_error,
            "change": scored.difference,
            "change_error": scored.difference_error,
            "accuracy": scored.accuracy,
            "state_bytes": scored.state_bytes,
            "decoded_per_s": None if math.isnan(speed) else speed,
            "recall": {name: found.nats for name, found in slices.items()},
        }
        for scored, slices, speed in measured
    }


def table(measured: Sequence[Measured]) -> str:
    """Formats a line per stage."""
    slices = list(measured[0].recall)[:3]
    heads = ["stage", "loss", "change", *(f"{name} (nats)" for name in slices[1:])]
    lines = [[*heads, "accuracy", "state bytes", "decode tokens/s"]]
    for i, (scored, found, speed) in enumerate(measured):
        change = f"{scored.difference:+.4f} ± {scored.difference_error:.4f}" if i else ""
        state = "" if scored.state_bytes is None else f"{scored.state_bytes:,}"
        nats = ["-" if (value := found[name].nats) is None else f"{value:.3f}" for name in slices[1:]]
        lines.append([scored.name, f"{scored.loss:.4f} ± {scored.loss_error:.4f}", change, *nats])
        lines[-1] += [f"{scored.accuracy:.4f}", state, "" if math.isnan(speed) else f"{speed:,.0f}"]
    return text_table(lines)
