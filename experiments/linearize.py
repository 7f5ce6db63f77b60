"""Cost of turning a small transformer into Based: loss, recall and state, by stage and by layer.

`python -m experiments.linearize --out sweeps/linearize`, with `--run RUN` for an existing transformer

On the source of Python's standard library in tokens of a BPE of 2,048 ids, the attention of a transformer of 2.2
million parameters is replaced by a window of 16 tokens and Taylor features of earlier tokens. Compared: (a) transfer
alone, (b) transfer and finetuning, (c) the same finetuning without transfer, (d) training from scratch with all tokens
of (b), (e) each layer alone after the transfer; and the transformer trained on with the tokens and learning rate of the
finetuning, as a control. Finished stages in --out are kept.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from experiments.recall_text import learn_bpe
from jaxzoo.cli.runner import Failure, command_line, prepare_jax
from jaxzoo.config.config_io import to_json
from jaxzoo.data.corpus.files import read_corpus
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
from jaxzoo.evals.recall_slices import target_repeats
from jaxzoo.fitting import fit
from jaxzoo.linearization.conversion import convert, converted_config
from jaxzoo.linearization.measure import decode_speed
from jaxzoo.linearization.transfer import TransferConfig, transfer
from jaxzoo.loading import Loaded, load
from jaxzoo.loading.importing import create_imported
from jaxzoo.loading.origin import CheckpointPlace
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import count_parameters, state_bytes
from jaxzoo.models.blueprint import split_variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.train.loss import score_targets
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.figure import TITLE_POINTS, add_legend, panels, save, series_style
from jaxzoo.utils.screen import Screen

LENGTH, BATCH, VOCAB_SIZE = 256, 8, 2048
N_LAYERS, N_HEADS = 6, 5
WINDOW = 16
RARE = 2
"""Largest number of occurrences of a rare bigram in the training text."""
SLICES = ("all tokens", "AR hits", "other tokens", "rare, not repeated")
"""The last slice shows the loss on hits of a model that cannot recall."""
STAGES = {
    "attention": "attention",
    "attention-on": "attention, trained on",
    "transfer": "(a) transfer",
    "finetuned": "(b) transfer + finetuning",
    "finetuning-alone": "(c) finetuning alone",
    "scratch": "(d) from scratch",
}
"""Runs by directory, and their names in table and picture."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Turns a transformer into Based and measures what it costs."""

    out: Path
    """Directory of the runs, results.json, table.md and the picture."""
    run: Path | None = None
    """Run of the transformer; default: it is trained here."""
    pretraining_steps: int = 1400
    """Steps of the transformer, of 2,048 tokens."""
    transfer_steps: int = 100
    """Steps of the transfer."""
    finetuning_steps: int = 100
    """Steps of the finetuning."""
    valid_windows: int = 200
    """Windows that are scored."""


class Nats(NamedTuple):
    """Validation rows of one model, and masks of the targets of each slice."""

    nats: np.ndarray
    masks: Mapping[str, np.ndarray]

    def mean(self, name: str) -> float:
        return float(self.nats[self.masks[name]].mean())

    def change(self, first: "Nats", name: str) -> tuple[float, float]:
        """Returns the difference of a slice's mean to another model's, and its standard error over the windows."""
        mask = self.masks[name]
        rows = ((self.nats - first.nats) * mask).sum(1)
        mean = float(rows.sum() / mask.sum())
        error = np.sqrt(len(rows)) * (rows - mean * mask.sum(1)).std(ddof=1) / mask.sum()
        return mean, float(error)


def pretraining(command: Command) -> RunConfig:
    tokenizer = command.out.absolute() / "tokenizer"
    if not tokenizer.exists():
        documents = read_corpus("", valid_fraction=0.05, seed=0).train
        tokenizer.mkdir(parents=True)
        save_tokenizer(learn_bpe(documents, VOCAB_SIZE), tokenizer)
    model = LanguageModelConfig(
        pattern=(AttentionConfig(n_heads=N_HEADS, positions="rotary"),),
        d_model=32 * N_HEADS,
        n_layers=N_LAYERS,
        vocab_size=VOCAB_SIZE,
        max_length=LENGTH,
        mlp_width=448,
        norm="rms",
    )
    return RunConfig(
        model=model,
        data=TextDataConfig(length=LENGTH, tokenizer_path=str(tokenizer), valid_tokens=LENGTH * command.valid_windows),
        optimizer=OptimizerConfig(learning_rate=3e-3, b2=0.95, final_fraction=0.1),
        train=TrainConfig(
            steps=command.pretraining_steps,
            batch_size=BATCH,
            valid_batch_size=16,
            eval_every=0,
            checkpoint_every=100,
            keep_checkpoints=1,
            log_every=20,
        ),
    )


def train(config: RunConfig, place: Path, *, steps: int, rate: float, start: Path | None = None) -> None:
    """Trains a run unless it is complete."""
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    config = dataclasses.replace(
        config, optimizer=optimizer, train=dataclasses.replace(config.train, steps=steps, seed=1)
    )
    run = RunDirectory(place)
    resume = run.newest_checkpoint.exists()
    if resume and load(place).step >= steps:
        return
    origin = None if start is None or resume else CheckpointPlace(start, None)
    fit(
        config,
        place,
        name=place.name,
        resume=resume,
        overwrite=not resume,
        init_from=origin,
        screen=Screen(sys.stdout),
    )
    if load(place).step < steps:
        raise Failure(f"stopped in {place}; the same command goes on")


def make_runs(command: Command) -> dict[str, Any]:
    """Makes all stages; returns the errors of the transfer by layer."""
    out, rate = command.out.absolute(), 1e-3
    if command.run is None:
        config = pretraining(command)
        train(config, out / "attention", steps=command.pretraining_steps, rate=3e-3)
    attention = attention_run(command)
    teacher = load(attention)
    # The teacher's own settings of text, so that a given run keeps its tokenizer.
    config = dataclasses.replace(teacher.config, train=dataclasses.replace(teacher.config.train, checkpoint_every=40))
    old = config.model, split_variables(teacher.model)
    model = converted_config(config.model, range(N_LAYERS), "based", window=WINDOW)
    based = dataclasses.replace(config, model=model)
    made = convert(*old, model)
    fingerprint = "" if teacher.tokenizer is None else teacher.tokenizer.fingerprint
    note: dict[str, Any] = {"run": str(attention), "step": teacher.step}
    errors_file = out / "transfer.json"
    if not errors_file.exists():
        data = config.data.build(batch_size=BATCH, valid_batch_size=1)
        tokens = command.transfer_steps * BATCH * LENGTH
        settings = TransferConfig(tokens=tokens, learning_rate=2e-3)
        report = lambda i, n, errors: i % 20 or print(f"transfer {i}/{n} {np.mean(errors):.4f}", flush=True)  # noqa: E731
        done = transfer(old, (model, made.variables), range(N_LAYERS), data.train(), settings, report=report)
        create_imported(RunDirectory(out / "converted"), to_json(based), made.variables, note, fingerprint)
        create_imported(RunDirectory(out / "transfer"), to_json(based), done.variables, note, fingerprint)
        errors_file.write_text(json.dumps({"first": done.first_errors, "last": done.last_errors}))
    n, both = command.finetuning_steps, command.transfer_steps + command.finetuning_steps
    train(based, out / "finetuned", steps=n, rate=rate, start=out / "transfer")
    train(config, out / "attention-on", steps=n, rate=rate, start=attention)
    train(based, out / "finetuning-alone", steps=n, rate=rate, start=out / "converted")
    train(based, out / "scratch", steps=both, rate=3e-3)
    return json.loads(errors_file.read_text())


def attention_run(command: Command) -> Path:
    return (command.run or command.out / "attention").absolute()


def score(model: LanguageModel, data: Any, seen: Mapping[int, int]) -> Nats:
    """Returns the nats of all validation targets, and the slices of Zoology, sec. 3.1."""
    graph, variables = nnx.split(model)
    nats_of = jax.jit(lambda variables, batch: score_targets(nnx.merge(graph, variables), batch).nats)
    batches = [data.valid()[0].batch(i) for i in range(data.valid()[0].n_batches)]
    nats = np.concatenate([np.asarray(nats_of(variables, batch), np.float64) for batch in batches])
    tokens, targets = (np.concatenate([np.asarray(getattr(b, f)) for b in batches]) for f in ("tokens", "targets"))
    counts = np.vectorize(lambda pair: seen.get(pair, 0))(tokens.astype(np.int64) * VOCAB_SIZE + targets)
    repeated, rare = target_repeats(tokens, targets, 2) > 0, counts <= RARE
    hits = repeated & rare
    return Nats(nats, dict(zip(SLICES, (np.ones_like(hits), hits, ~hits, rare & ~repeated), strict=True)))


def bigrams_of(loaded: Loaded) -> dict[int, int]:
    """Counts the bigrams of the training text."""
    text, tokenizer = loaded.config.data, loaded.tokenizer
    assert isinstance(text, TextDataConfig)
    assert tokenizer is not None
    documents = read_corpus(text.path, valid_fraction=text.valid_fraction, seed=text.seed).train
    tokens = [tokenizer.encode(document.data.decode()).astype(np.int64) for document in documents]
    pairs, counts = np.unique(np.concatenate([x[:-1] * VOCAB_SIZE + x[1:] for x in tokens]), return_counts=True)
    return dict(zip(pairs.tolist(), counts.tolist(), strict=True))


def measure(command: Command, errors: Mapping[str, Any]) -> dict[str, Any]:
    out = command.out.absolute()
    models = {name: load(attention_run(command) if name == "attention" else out / name) for name in STAGES}
    first = models["attention"]
    data = dataclasses.replace(first.config.data, valid_tokens=LENGTH * command.valid_windows).build(
        batch_size=BATCH, valid_batch_size=16
    )
    seen = bigrams_of(first)
    base = score(first.model, data, seen)

    def scores(found: Nats) -> dict[str, Any]:
        changes = {name: found.change(base, name) for name in SLICES}
        return {
            name: {"nats": found.mean(name), "change": changes[name][0], "error": changes[name][1]} for name in SLICES
        }

    rows = {}
    for name, loaded in models.items():
        rows[name] = {
            "name": STAGES[name],
            "steps": loaded.step,
            "slices": scores(score(loaded.model, data, seen)),
            "parameters": count_parameters(loaded.model),
            "state_bytes": {str(n): state_bytes(loaded.model.config, n) for n in (LENGTH, 4096)},
            "decode_tokens_per_s": decode_speed(loaded, LENGTH),
        }
        print(STAGES[name], rows[name], flush=True)
    layers = []
    for i in range(N_LAYERS):
        model = first.model.unstacked()
        model.stacks[i] = models["transfer"].model.unstacked().stacks[i]
        layers.append(scores(score(model, data, seen)))
    return {
        "window": WINDOW,
        "rare": RARE,
        "share_of_hits": float(base.masks["AR hits"].mean()),
        "targets": int(base.nats.size),
        "unigram_nats": data.baselines()["unigram"].nats_per_token,
        "tokens": {name: getattr(command, f"{name}_steps") * BATCH * LENGTH for name in ("transfer", "finetuning")},
        "transfer_errors": errors,
        "stages": rows,
        "layers": layers,
    }


def table(found: Mapping[str, Any]) -> str:
    """Returns stages and layers as Markdown."""
    heads = [
        "",
        "perplexity",
        *(f"{name}, nats" for name in SLICES[1:3]),
        "state bytes, 256 / 4,096 tokens",
        "decode tokens/s",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in found["stages"].values():
        total, *others = (row["slices"][name] for name in SLICES[:3])
        state = " / ".join(f"{n:,}" for n in row["state_bytes"].values())
        lines.append([row["name"], f"{np.exp(total['nats']):.1f}", *(_cell(x) for x in others), state])
        lines[-1].append(f"{row['decode_tokens_per_s']:,.0f}")
    for i, row in enumerate(found["layers"]):
        total, *others = (row[name] for name in SLICES[:3])
        lines.append([f"(e) layer {i} alone", f"{np.exp(total['nats']):.1f}", *(_cell(x) for x in others), "", ""])
    about = (
        f"Perplexity per token of {found['targets']:,} validation targets ({np.exp(found['unigram_nats']):.0f} by "
        f"unigrams). AR hits: {found['share_of_hits']:.1%} of the targets, bigrams that repeat in the window and "
        f"occur at most {found['rare']} times in training. In parentheses: paired change to attention, "
        "with its standard error."
    )
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# A transformer of 2.2 million parameters becomes Based\n\n{about}\n\n{rows}\n"


def _cell(x: Mapping[str, float]) -> str:
    return f"{x['nats']:.3f}" + (f" ({x['change']:+.3f} ± {x['error']:.3f})" if x["change"] else "")


def draw(found: Mapping[str, Any], out: Path) -> None:
    """Draws changes by slice, of the stages and of single layers."""
    figure, ((left, right),) = panels(1, 2, size=(10, 4.4), title="A transformer of 2.2M parameters becomes Based")
    stages = {row["name"]: row["slices"] for key, row in found["stages"].items() if key != "attention"}
    layers = {f"layer {i}": row for i, row in enumerate(found["layers"])}
    for axes, rows, title in ((left, stages, "all layers"), (right, layers, "one layer, after the transfer")):
        for series, name in enumerate(SLICES[1:3]):
            style = series_style(series) | {"linestyle": "none"}
            places = np.arange(len(rows)) + 0.12 * (2 * series - 1)
            heights, errors = ([row[name][key] for row in rows.values()] for key in ("change", "error"))
            axes.errorbar(places, heights, yerr=1.96 * np.array(errors), capsize=3, label=name, **style)
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.set_xticks(range(len(rows)), list(rows), rotation=20, ha="right", fontsize=8)
        axes.set_title(title, fontsize=TITLE_POINTS)
    left.set(ylabel="nats more than attention, 95 % interval")
    add_legend(figure)
    for end in ("svg", "png"):
        save(figure, out / f"figure.{end}")


@command_line(prog="python -m experiments.linearize")
def main(command: Command) -> None:
    command.out.mkdir(parents=True, exist_ok=True)
    prepare_jax()
    found = measure(command, make_runs(command))
    (command.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (command.out / "table.md").write_text(table(found))
    draw(found, command.out)
    print(table(found))


if __name__ == "__main__":
    raise SystemExit(main(None))
