"""`python -m jaxzoo.evaluate --run DIR --tasks fda swde …`: a trained language model on recall tasks and others.

Tasks are those of lm_eval, by name, with the data of the Hugging Face hub or local files; the recall tasks of Based
also run without lm_eval.
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.cli.config_file import import_file
from jaxzoo.cli.evaluate_common import PROGRAM, check_out, check_variables, write_results
from jaxzoo.cli.flags import ArgumentParser, UsageError, override, which_checkpoint
from jaxzoo.cli.runner import say, use_compilation_cache

if TYPE_CHECKING:
    from jaxzoo.evals.text_model import TextModel

DESCRIPTION = """Scores a language model, trained on text, on tasks: the recall tasks fda, swde, squad_completion
(Based, Tables 1 to 3) and records (made by python -m jaxzoo.tasks.records), and any other of lm_eval by name, such as
lambada_openai, hellaswag, piqa, arc_easy, arc_challenge, winogrande, super-glue-lm-eval-v1. Prompts that are longer
than the model's max_length lose their beginning, which the report counts; --model.max-length and any other field of the
run's config can be overridden by its dotted name."""

DATA_HELP = """directory with TASK.jsonl for every task: the rows of its set on the hub, of the split that is scored
(for recall tasks, objects with text and value); default: fetched from the hub by lm_eval"""

REPORT_SECONDS = 2.0
"""Shortest time between two lines about the progress."""


def evaluate_tasks(argv: Sequence[str]) -> None:
    """Runs the command line `argv`.

    Raises:
      ValueError, OSError: what is wrong, in one line.
    """
    options, flags = _options().parse_known_args(argv)
    if options.help:
        print(_options().format_help())
        return
    if options.run is None:
        raise UsageError("--run DIR is required, such as runs/lm-based_tiny; see --tasks --help")
    out = check_out(options.out)
    for name in ("limit", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value} must be positive")
    if options.data is not None:
        options.data = options.data.expanduser()
        _work_offline()
    if not options.tasks:
        raise UsageError("--tasks must name at least one, such as fda; see --tasks --help")
    scorer, names = _plan(options)
    if options.config is not None:
        import_file(options.config)
    model, about = _model(options, flags)
    results = _score(scorer, model, names, options)
    about |= {"max_length": model.max_length, "requests": model.requests._asdict()}
    truncated, total = model.requests.truncated, model.requests.total
    say(f"{truncated:,} of {total:,} requests lost their beginning; the model reads {model.max_length:,} tokens")
    write_results(table(results), out, {**about, "scorer": scorer, "limit": options.limit, "results": results})


def _plan(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Scorer and tasks of the command line; refuses missing ones before anything is loaded."""
    from jaxzoo.evals.recall_tasks import RECALL_TASKS

    installed = importlib.util.find_spec("lm_eval") is not None
    scorer = options.scorer or ("lm_eval" if installed else "own")
    others = [name for name in options.tasks if name not in RECALL_TASKS]
    if scorer == "lm_eval" and not installed:
        raise UsageError("--scorer lm_eval needs the library 'lm_eval'; pip install -e '.[eval]'")
    if scorer == "own" and others:
        remedy = "leave out --scorer own" if installed else "it needs the library 'lm_eval'; pip install -e '.[eval]'"
        raise UsageError(f"task {others[0]!r} must be one of {', '.join(RECALL_TASKS)}, which we score; {remedy}")
    names = list(dict.fromkeys(options.tasks))
    if scorer == "lm_eval":
        from jaxzoo.evals.lm_eval_tasks import task_names

        names = task_names(options.tasks)
    if options.data is None and (scorer == "own" or "records" in names):
        raise UsageError(f"--data DIR is required: DIR/{names[0]}.jsonl would be read; see --tasks --help")
    if options.data is not None:
        missing = [name for name in names if not (options.data / f"{name}.jsonl").is_file()]
        if missing:
            file, rows = options.data / f"{missing[0]}.jsonl", RECALL_TASKS.get(missing[0]) or "its set"
            raise UsageError(f"task {missing[0]}: {file} does not exist; it must hold the rows of {rows}, a line each")
    return scorer, names


def _work_offline() -> None:
    """Keeps lm_eval's libraries, which read these when they are imported, from asking the hub for anything."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")


def _model(options: argparse.Namespace, flags: Sequence[str]) -> tuple["TextModel", dict[str, Any]]:
    """The run's model as the flags have it, and what the report says about it."""
    import jax

    from jaxzoo.config_io import to_json
    from jaxzoo.evals.text_model import TextModel
    from jaxzoo.models.accounting import count_parameters
    from jaxzoo.models.blueprint import make_blueprint, split_variables
    from jaxzoo.train.trained import load_trained, read_run

    directory, config = read_run(options.run.expanduser())
    asked = override(config, flags, prog=PROGRAM)
    use_compilation_cache()
    model, tokenizer, step = load_trained(directory.path, options.checkpoint)
    blueprint = make_blueprint(asked.model)
    check_variables(make_blueprint(config.model), blueprint)
    device = jax.devices()[0].device_kind
    say(f"{options.run}: {count_parameters(model):,} parameters, checkpoint {step}, {device}")
    text_model = TextModel(
        blueprint.model(split_variables(model)), tokenizer, batch_size=options.batch_size, report=_Progress()
    )
    return text_model, {"run": str(directory.path), "step": step, "config": to_json(asked)}


def _score(
    scorer: str, model: "TextModel", names: Sequence[str], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    if scorer == "lm_eval":
        from jaxzoo.evals.lm_eval_tasks import score_tasks

        return score_tasks(model, names, data=options.data, limit=options.limit)
    from jaxzoo.evals.recall_tasks import read_examples, score_recall

    examples = {name: read_examples(options.data / f"{name}.jsonl", options.limit) for name in names}
    return {name: score_recall(model, examples[name]).metrics() for name in names}


class _Progress:
    """Prints now and then how far an evaluation is."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said > REPORT_SECONDS:
            self._said = now
            say(f"{done:,} of {total:,} {what}, {now - self._began:.0f} s")


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """A line for every metric of every task: value, standard error where there is one, and number of examples."""
    rows = [("task", "metric", "value", "stderr", "n")]
    for task, metrics in results.items():
        for name, value in metrics.items():
            if name == "n" or "_stderr" in name:
                continue
            metric, _, behind = name.partition(",")
            stderr = metrics.get(f"{metric}_stderr" + (f",{behind}" if behind else ""))
            shown = "" if stderr is None else f"{stderr:.4f}"
            rows.append((task, name, f"{value:.4f}", shown, f"{metrics['n']:,.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    aligned = ("<", "<", ">", ">", ">")
    return "\n".join(
        "  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True))
        for row in rows
    )


def _options() -> argparse.ArgumentParser:
    """Options other than the config's fields."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--run", metavar="DIR", type=Path, help="directory of the run; nothing is written there")
    parser.add_argument("--tasks", metavar="NAME", nargs="*", default=[], help="which tasks")
    parser.add_argument("--data", metavar="DIR", type=Path, help=DATA_HELP)
    parser.add_argument("--limit", metavar="N", type=int, help="the first N examples of each task; default: all")
    parser.add_argument("--batch-size", metavar="N", type=int, default=8, help="rows of a batch; default: 8")
    parser.add_argument(
        "--scorer",
        choices=("lm_eval", "own"),
        help="own: the recall tasks without lm_eval, with the same numbers; default: lm_eval where it is installed",
    )
    checkpoint = "step of the checkpoint, or best: that with the best validation; default: the newest"
    parser.add_argument("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    parser.add_argument("--config", metavar="FILE", type=Path, help="the run's config file, if it defines classes")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also writes the results there, as JSON")
    return parser
