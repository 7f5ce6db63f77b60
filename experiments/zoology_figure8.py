"""Zoology, Appendix G, Figure 8: associative recall of pretrained language models, without training.

    python -m experiments.zoology_figure8 --models runs/rwkv runs/llama --out sweeps/zoology_figure8

Algorithm 1 in each model's own full vocabulary: the first half of the token ids are keys, the second half values, token
0 is the filler. Each of P pairs `key value` appears twice in 1,024 tokens: in the first 2 P, and again at a position
drawn by the power law of the gap. Two perplexities against P: of the values after repeated keys, and of the filler
tokens. In the paper the first one of RWKV-4 Raven 7B grows with P; its second one, and both of Llama 2 7B, stay flat.

Deviations: the paper names neither the law's exponent nor the filler; here they are MQAR's, 0.1 and token 0. Second
appearances start at even positions, so that they do not overlap. Models are runs or exports of jaxzoo; `jaxzoo
convert` makes a run from a folder of the Hugging Face hub.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.loading import load
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.utils import figure
from jaxzoo.utils.array_typing import Array, Float, Int

LEARNED = 0.5
"""Largest share of the guessing perplexity (the number of possible values) at which a model counts as recalling."""


class Sequences(NamedTuple):
    """Inputs, next tokens, and masks of the values after repeated keys and of the fillers."""

    tokens: Int[Array, "b t-1"]
    targets: Int[Array, "b t-1"]
    recalled: Array
    filler: Array


def sequences(task: MQARConfig, numbers: Int[np.ndarray, "b"], seed: int = 0, filler: int = 0) -> Sequences:
    """Makes examples of MQAR in which each value also follows its key's second occurrence. The token `filler` fills,
    and token 0 takes its place as a key."""
    batch = task.labelled(seed, numbers, "test")
    assert batch.positions is not None
    rows = np.arange(len(numbers))[:, None]
    tokens = jnp.asarray(batch.tokens).at[rows, batch.positions + 1].set(batch.targets)
    swapped = jnp.where(tokens == filler, 0, tokens)
    tokens = jnp.where(tokens == 0, filler, swapped)
    recalled = jnp.zeros(tokens.shape, bool).at[rows, batch.positions + 1].set(True)
    return Sequences(tokens[:, :-1], tokens[:, 1:], recalled[:, 1:], tokens[:, 1:] == filler)


def measure(
    model: nnx.Module, task: MQARConfig, *, n_sequences: int, batch_size: int, filler: int = 0
) -> dict[str, Any]:
    """Returns perplexities of recalled values and of fillers (`recalled`, `filler`; None without empty positions) and
    standard errors over sequences of their logarithms (`recalled_error`, `filler_error`). `model` maps tokens `(b, t)`
    to logits of the next token, `(b, t, vocab)`; `n_sequences` is rounded up to whole batches."""
    graph, variables = nnx.split(model)
    starts = range(0, n_sequences, batch_size)
    batches = (sequences(task, np.arange(at, at + batch_size), filler=filler) for at in starts)
    parts = [jax.device_get(_nats(graph, task.vocab_size, variables, batch)) for batch in batches]
    found: dict[str, Any] = {"filler": None, "filler_error": None}
    for name, rows in zip(("recalled", "filler"), map(np.concatenate, zip(*parts, strict=True)), strict=True):
        if np.isnan(rows).all():
            continue
        found[name] = float(np.exp(rows.mean(dtype=np.float64)))
        found[f"{name}_error"] = float(rows.std(dtype=np.float64) / np.sqrt(len(rows)))
    return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _nats(
    graph: nnx.GraphDef, vocab_size: int, variables: nnx.State, batch: Sequences
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns the mean negative log-likelihoods of a sequence's recalled values and of its fillers."""
    logits = nnx.merge(graph, variables)(batch.tokens)[..., :vocab_size].astype(jnp.float32)
    nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], axis=-1)[..., 0]
    return nats.mean(1, where=batch.recalled), nats.mean(1, where=batch.filler)


def verdict(rows: list[dict[str, Any]]) -> str:
    """Returns a verdict on a model's rows by number of pairs: degrades, stays flat, or never recalls."""
    few, many = rows[0], rows[-1]
    if min(row["recalled"] for row in rows) > LEARNED * few["guess"]:
        return f"not tested: never better than {LEARNED:g} of guessing among the values ({few['guess']:,})"
    rise = np.log(many["recalled"] / few["recalled"])
    error = np.hypot(many["recalled_error"], few["recalled_error"])
    change = f"{few['recalled']:.3g} at {few['pairs']} pairs, {many['recalled']:.3g} at {many['pairs']}"
    return f"{'degrades' if rise > max(3 * error, np.log(1.1)) else 'flat'}: perplexity {change}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Measures the perplexity of recalled values and of filler tokens of pretrained models against the number of
    key-value pairs (Zoology, Appendix G, Figure 8). Writes rows.jsonl, table.md, figure.svg and figure.png."""

    models: tuple[Path, ...]
    """Runs, or .safetensors files of jaxzoo export."""
    pairs: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Key-value pairs of a sequence; at most a fourth of --length."""
    length: int = 1024
    """Tokens of a sequence; below the model's vocabulary."""
    sequences: int = 1000
    """Sequences for each number of pairs."""
    batch_size: int = 8
    """Sequences at a time."""
    out: Path
    """Directory of the results; it must not exist."""


@command_line(prog="python -m experiments.zoology_figure8", out_of_memory="out of memory; lower --batch-size")
def main(command: Command) -> None:
    out = command.out.expanduser()
    if out.exists():
        raise UsageError(f"--out {out} exists; choose another place")
    if min(command.sequences, command.batch_size) < 1 or not command.pairs:
        raise UsageError("--sequences, --batch-size and --pairs must be positive")
    prepare_jax()
    rows: list[dict[str, Any]] = []
    for path in command.models:
        loaded = load(path)
        size = loaded.config.model.vocab_size if loaded.tokenizer is None else loaded.tokenizer.vocab_size
        for pairs in sorted(command.pairs):
            task = MQARConfig(vocab_size=size, length=command.length, n_pairs=pairs)
            found = measure(loaded.model, task, n_sequences=command.sequences, batch_size=command.batch_size)
            rows.append({"model": path.name, "pairs": pairs, "guess": task.n_values, **found})
            say(f"{path.name}, {pairs} pairs: perplexity of recalled values {found['recalled']:.4g}")
    write(rows, out)
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Returns perplexities by model and number of pairs, and the verdicts, as Markdown."""
    lines = ["| model | pairs | recalled values | filler tokens |", "|---|---|---|---|"]
    lines += [f"| {r['model']} | {r['pairs']} | {r['recalled']:.4g} | {_short(r['filler'])} |" for r in rows]
    return "\n".join([*lines, "", *(f"- {name}: {verdict(of)}" for name, of in _by_model(rows).items())])


def _short(perplexity: float | None) -> str:
    return "-" if perplexity is None else f"{perplexity:.4g}"


def write(rows: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True)
    (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "table.md").write_text(table(rows) + "\n")
    picture, axes = figure.panels(1, 1, size=(5.5, 4), title="Recall of pretrained models (Zoology, Figure 8)")
    panel = axes[0, 0]
    for i, (name, of) in enumerate(_by_model(rows).items()):
        for kind, line in (("recalled", "-"), ("filler", ":")):
            pairs, center = [r["pairs"] for r in of], np.array([r[kind] for r in of], float)
            error = np.exp(np.array([r[f"{kind}_error"] for r in of], float))
            style = {**figure.series_style(i), "linestyle": line}
            reach = [center - center / error, center * error - center]
            panel.errorbar(pairs, center, reach, **style, label=f"{name}, {kind}")
    guesses = sorted({row["guess"] for row in rows})
    for i, guess in enumerate(guesses):
        panel.axhline(guess, **figure.bound_style(i), label="guessing among the values")
    panel.set(xlabel="key-value pairs", ylabel="perplexity", yscale="log")
    figure.plain_log_ticks(panel, "x", [row["pairs"] for row in rows])
    figure.add_legend(picture)
    for kind in ("png", "svg"):
        figure.save(picture, out / f"figure.{kind}")


def _by_model(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for row in rows if row["model"] == name] for name in dict.fromkeys(r["model"] for r in rows)}


if __name__ == "__main__":
    raise SystemExit(main(None))
