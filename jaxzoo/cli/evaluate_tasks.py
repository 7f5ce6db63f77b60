"""`python -m jaxzoo.evaluate --run DIR --tasks fda swde ...`: a trained language model on recall tasks and others.

Tasks are those of lm_eval, by name, with the data of the Hugging Face hub or local files; the recall tasks of Based
also run without lm_eval.
"""

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from jaxzoo.cli.evaluate_common import PROGRAM, check_variables, write_results
from jaxzoo.cli.flags import UsageError, override
from jaxzoo.cli.progress import ProgressLines
from jaxzoo.cli.runner import say, use_compilation_cache
from jaxzoo.config_io import to_json
from jaxzoo.evals.recall_tasks import RECALL_TASKS, read_examples, score_recall
from jaxzoo.evals.text_model import TextModel
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.train.trained import load_trained, read_run


def evaluate_tasks(options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Scores a model on tasks, prints and writes.

    Args:
      options: those of `python -m jaxzoo.evaluate`.
      flags: fields of the run's config.

    Raises:
      ValueError, OSError: what is wrong, in one line.
    """
    for name in ("limit", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value} must be positive")
    if not options.tasks:
        raise UsageError("--tasks must name at least one, such as fda; see --help")
    scorer, names = _plan(options)

    path = options.run[0]
    directory, config = read_run(Path(path).expanduser())
    asked = override(config, flags, prog=PROGRAM)
    use_compilation_cache()
    trained, tokenizer, step = load_trained(directory.path, options.checkpoint)
    blueprint = make_blueprint(asked.model)
    check_variables(make_blueprint(config.model), blueprint)
    say(f"{path}: {count_parameters(trained):,} parameters, checkpoint {step}, {jax.devices()[0].device_kind}")
    model = TextModel(
        blueprint.model(split_variables(trained)),
        tokenizer,
        batch_size=options.batch_size or 8,
        report=ProgressLines("requests"),
    )
    if scorer == "lm_eval":
        from jaxzoo.evals.lm_eval_tasks import averages, score_tasks

        results = score_tasks(model, names, data=options.data, limit=options.limit)
        results |= averages(options.tasks, results)
    else:
        examples = {name: read_examples(options.data / f"{name}.jsonl", options.limit) for name in names}
        results = {name: score_recall(model, examples[name]).metrics() for name in names}
    truncated, total = model.requests.truncated, model.requests.total
    say(f"{truncated:,} of {total:,} requests lost their beginning; the model reads {model.max_length:,} tokens")
    about = {"run": str(directory.path), "step": step, "config": to_json(asked), "max_length": model.max_length}
    about |= {"requests": model.requests._asdict(), "scorer": scorer, "limit": options.limit}
    write_results(table(results), options.out, {**about, "results": results})


def _plan(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Scorer and tasks of the command line; refuses missing ones before anything is loaded."""
    if options.data is not None:
        options.data = options.data.expanduser()
        # lm_eval's libraries read these when they are imported, and then ask the hub for nothing
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
            os.environ.setdefault(name, "1")
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
        raise UsageError(f"--data DIR is required: DIR/{names[0]}.jsonl would be read; see --help")
    if options.data is not None:
        files = [name.partition("@")[0] for name in names]
        missing = [name for name in files if not (options.data / f"{name}.jsonl").is_file()]
        if missing:
            file, rows = options.data / f"{missing[0]}.jsonl", RECALL_TASKS.get(missing[0]) or "its set"
            raise UsageError(f"task {missing[0]}: {file} does not exist; it must hold the rows of {rows}, a line each")
    return scorer, names


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """A line for every metric of every task: value, standard error where there is one, and number of examples."""
    rows = [("task", "metric", "value", "stderr", "n")]
    for task, metrics in results.items():
        for name, value in metrics.items():
            if name == "n" or "_stderr" in name:
                continue
            metric, _, filtered = name.partition(",")
            stderr = metrics.get(f"{metric}_stderr" + (f",{filtered}" if filtered else ""))
            shown = "" if stderr is None else f"{stderr:.4f}"
            rows.append((task, name, f"{value:.4f}", shown, f"{metrics['n']:,.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    aligned = ("<", "<", ">", ">", ">")
    return "\n".join(
        "  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True))
        for row in rows
    )
