"""Recall of pretrained language models, against the bytes of their state, without training.

    python -m experiments.pretrained_recall --models runs/smollm2 --out sweeps/pretrained_recall

Tasks of the papers for any run (`jaxzoo convert` makes one from a folder or a GGUF file):

- `records`: a value of a document of fields, as FDA and SWDE ask (Based, sec. 6), at zero shots;
- `phone book`: a number after its name, by the number of entries (Jelassi et al. 2024, arXiv 2402.01032); the question
  is the name once more, in the form of the book;
- `needle`: a number in a text of repeated lines, by its number of lines (RULER, arXiv 2404.06654);
- `bigrams`: nats per token of validation text where a bigram repeats in its window, and where it does not (Zoology,
  sec. 3.1; rare or not, since the counts of training are unknown);
- `MQAR`: perplexity of recalled values (Zoology, App. G), by the token that fills the gaps.

The table also has the bytes of the model's state at the length of the question.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.zoology_figure8 import measure
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.data.completions import CompletionsConfig
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.evals.recall_tasks import RecallExample, score_recall
from jaxzoo.evals.text_model import TextModel
from jaxzoo.linearization.measure import recall
from jaxzoo.loading import Loaded, load
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.record_documents import RecordsConfig, RecordSet
from jaxzoo.tasks.record_sources import debian_records, python_records
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig, TextTask
from jaxzoo.utils import figure

STATUS = Path("/var/lib/dpkg/status")
FILLERS = {"token 0": None, "newline": "\n", "the": " the"}
"""Texts whose first token fills the gaps of MQAR; None: token 0."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Measures the recall of pretrained models. Writes rows.jsonl, table.md, figure.svg and figure.png."""

    models: tuple[Path, ...]
    """Runs, or .safetensors files of jaxzoo export."""
    examples: int = 40
    """Questions of each kind and size."""
    entries: tuple[int, ...] = (8, 32, 128)
    """Entries of a phone book."""
    lines: tuple[int, ...] = (8, 32, 128)
    """Lines around a needle."""
    mqar_length: int = 256
    """Tokens of a sequence of MQAR."""
    mqar_pairs: int = 16
    """Key-value pairs in a sequence of MQAR."""
    text_tokens: int = 4096
    """Validation tokens of text for the slices by bigrams."""
    batch_size: int = 4
    """Rows at a time."""
    out: Path
    """Directory of the results; it must not exist."""


def questions(command: Command) -> Iterator[tuple[str, int, list[RecallExample]]]:
    """Returns kind, size and examples of every question on text."""
    records = RecordSet([*python_records(), *debian_records(STATUS)], RecordsConfig()).examples()
    chosen = records[:: max(len(records) // command.examples, 1)][: command.examples]
    yield "records", len(chosen[0]["text"]), [RecallExample(x["text"].strip(), x["value"].strip()) for x in chosen]
    kinds: list[tuple[str, type[TextTask], tuple[int, ...]]] = [
        ("phone book", PhoneBookConfig, command.entries),
        ("needle", NeedleConfig, command.lines),
    ]
    for name, kind, sizes in kinds:
        for size in sizes:
            task, rng = kind(length=2**20), np.random.default_rng(0)
            texts = [task.text(rng, size - 1) for _ in range(command.examples)]
            prompts = [text.prompt for text in texts]
            if kind is PhoneBookConfig:  # in the form of the book itself, which models continue without instruction
                prompts = [re.sub(r"The number of (.*) is$", r"\1:", prompt) for prompt in prompts]
            answers = [text.answer.strip() for text in texts]
            yield name, size, list(map(RecallExample, prompts, answers))


def text_of(data: Any, n_tokens: int) -> Any:
    """Returns data of `n_tokens` validation tokens: the text of the run, or (if it was finetuned on completions)
    the source of Python's standard library."""
    if isinstance(data, CompletionsConfig):
        data = TextDataConfig(length=data.length, begin=data.begin, tokenizer_path=data.tokenizer_path)
    return dataclasses.replace(data, valid_tokens=max(n_tokens, data.length))


def rows_of(name: str, loaded: Loaded, command: Command) -> Iterator[Row]:
    """Yields all measurements of a model."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"{name} was trained on token ids, not on text")
    model = TextModel(loaded.model, tokenizer, batch_size=command.batch_size)
    for kind, size, examples in questions(command):
        length = max(len(tokenizer.prompt(example.prompt)) for example in examples)
        found = score_recall(model, examples)
        error = found.get("contains_stderr", math.nan)
        yield _row(name, loaded, kind, f"{size}", length, found["contains"], error, found["n"])
    data = text_of(loaded.config.data, command.text_tokens)
    scores = recall(loaded, data.build(batch_size=1, valid_batch_size=command.batch_size))
    for kind, score in scores.items():
        if score.nats is None:
            continue
        error = score.standard_error or math.nan
        yield _row(name, loaded, "bigrams, nats", kind, data.length, score.nats, error, score.tokens)
    task = MQARConfig(vocab_size=tokenizer.vocab_size, length=command.mqar_length, n_pairs=command.mqar_pairs)
    sizes = {"n_sequences": command.examples, "batch_size": command.batch_size}
    for kind, text in FILLERS.items():
        filler = 0 if text is None else int(tokenizer.encode(text)[0])
        mqar = measure(loaded.model, task, filler=filler, **sizes)
        what = f"filler {kind}"
        yield _row(name, loaded, "MQAR, perplexity", what, task.length, mqar["recalled"], math.nan, command.examples)


def _row(name: str, loaded: Loaded, kind: str, size: str, length: int, value: float, error: float, n: float) -> Row:
    state = jax.eval_shape(lambda: loaded.model.init_state(1, capacity=length))
    n_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    row = {"model": name, "kind": kind, "size": size, "length": length, "state_bytes": n_bytes}
    say(f"{name}, {kind} {size}: {value:.4g}")
    return {**row, "value": value, "error": error, "n": n}


def table(rows: list[Row]) -> str:
    lines = ["| model | question | size | tokens | state, bytes | result | n |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        result = f"{r['value']:.4g}" + ("" if math.isnan(r["error"]) else f" ± {r['error']:.2g}")
        cells = (r["model"], r["kind"], r["size"], r["length"], f"{r['state_bytes']:,}", result, f"{r['n']:,.0f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def write(rows: list[Row], out: Path) -> None:
    (out / "table.md").write_text(table(rows) + "\n")
    kinds = ("records", "phone book", "needle")
    picture, axes = figure.panels(1, 3, size=(8, 3.2), title="Recall of pretrained models")
    for i, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        for kind, panel in zip(kinds, axes[0], strict=True):
            of = [row for row in rows if (row["model"], row["kind"]) == (model, kind)]
            sizes, values = [row["state_bytes"] / 1e6 for row in of], [row["value"] for row in of]
            panel.errorbar(sizes, values, [row["error"] for row in of], **figure.series_style(i), label=model)
    for kind, panel in zip(kinds, axes[0], strict=True):
        panel.set(title=kind, xlabel="state, MB", xscale="log", ylim=(-0.03, 1.03))
        figure.plain_log_ticks(panel, "x")
    axes[0, 0].set(ylabel="share of right answers")
    figure.add_legend(picture)
    for kind in ("png", "svg"):
        figure.save(picture, out / f"figure.{kind}")


@command_line(prog="python -m experiments.pretrained_recall", out_of_memory="out of memory; lower --batch-size")
def main(command: Command) -> None:
    out = command.out.expanduser()
    if out.exists():
        raise UsageError(f"--out {out} exists; choose another place")
    prepare_jax()
    out.mkdir(parents=True)
    rows: list[Row] = []
    names = [path.name for path in command.models]
    for path in command.models:
        name = path.name if names.count(path.name) == 1 else str(path)
        for row in rows_of(name, load(path, text=True), command):
            rows.append(row)
            with (out / "rows.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    write(rows, out)
    print(table(rows))


if __name__ == "__main__":
    raise SystemExit(main(None))
