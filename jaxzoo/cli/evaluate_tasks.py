"""`python -m jaxzoo.evaluate --run DIR --tasks fda swde ...`: a trained language model on recall tasks and others.

Tasks are those of lm_eval, by name, with the data of the Hugging Face hub or local files; the recall tasks of Based
also run without lm_eval. `--out` is written after each task, and `--resume` asks the tasks that it lacks.
"""

import argparse
import importlib.util
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxzoo.cli.evaluate_common import PROGRAM, check_variables, write_results
from jaxzoo.cli.flags import UsageError, override
from jaxzoo.cli.progress import ProgressLines
from jaxzoo.cli.runner import prepare_jax, say
from jaxzoo.config.checked import shorten
from jaxzoo.config.config_io import first_difference, to_json
from jaxzoo.config.json_files import decode_json
from jaxzoo.evals.recall_tasks import RECALL_TASKS, read_examples, score_recall
from jaxzoo.evals.text_model import Requests, TextModel
from jaxzoo.loading import load
from jaxzoo.loading.trained import read_run
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.text_table import text_table
from jaxzoo.utils.whole_files import write_whole


def evaluate_tasks(options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Scores a model on tasks, prints and writes; the flags are fields of the run's config."""
    if not options.tasks:
        raise UsageError("--tasks must name at least one, such as fda; see --help")
    if options.resume and options.out is None:
        raise UsageError("--resume needs --out FILE, the file of the evaluation that was stopped")
    scorer, names = _plan(options)

    path = options.run[0]
    directory, config = read_run(Path(path).expanduser())
    asked = override(config, flags, prog=PROGRAM)
    prepare_jax()
    loaded = load(directory.path, options.checkpoint, text=True)
    trained, step, tokenizer = loaded.model, loaded.step, loaded.tokenizer
    assert tokenizer
    tokenizer.choose_begin(options.bos or "auto")
    blueprint = make_blueprint(asked.model)
    check_variables(path, make_blueprint(config.model), blueprint)
    say(f"{path}: {count_parameters(trained):,} parameters, checkpoint {step}, {jax.devices()[0].device_kind}")
    model = TextModel(
        blueprint.model(split_variables(trained)),
        tokenizer,
        batch_size=options.batch_size or 8,
        report=ProgressLines("requests"),
    )
    about = {"run": directory.path.name, "step": step, "config": to_json(asked), "max_length": model.max_length}
    about |= {
        "scorer": scorer,
        "limit": options.limit,
        "begin": list(tokenizer.begin),
        "tasks": names,
        "data": _digests(options.data, names),
    }
    done = FinishedTasks(options.out, about, model)
    if options.resume:
        done.read()
        say(f"{len(done.results)} of {len(names)} tasks are finished in {options.out}")
    left = [name for name in names if name not in done.results]
    if scorer == "lm_eval":
        from jaxzoo.evals.lm_eval_tasks import averages, score_tasks

        score_tasks(model, left, data=options.data, limit=options.limit, finished=done.add)
        done.results |= averages(options.tasks, done.results)
    else:
        examples = {name: read_examples(options.data / f"{name}.jsonl", options.limit) for name in left}
        for name in left:
            done.add(name, score_recall(model, examples[name]))
    truncated, total = done.requests.truncated, done.requests.total
    say(f"{truncated:,} of {total:,} requests lost their beginning; the model reads {model.max_length:,} tokens")
    write_results(table(done.results), options.out, done.report())


class FinishedTasks:
    """Results by task, kept in the file of `--out` after each.

    Args:
      out: the file; None, or no regular file: nothing is kept before the end.
      about: settings, JSON-able; an evaluation is resumed with the same alone. `tasks` are the names of all tasks.
      model: counts the requests.
    """

    def __init__(self, out: Path | None, about: Mapping[str, Any], model: TextModel):
        self._out, self._about, self._model = out, about, model
        self._before = Requests(0, 0)
        self.results: dict[str, dict[str, float]] = {}

    @property
    def requests(self) -> Requests:
        """Requests of all results."""
        return Requests(*map(sum, zip(self._before, self._model.requests, strict=True)))

    def report(self) -> dict[str, Any]:
        """Contents of the file."""
        return add_checksum({**self._about, "requests": self.requests._asdict(), "results": self.results})

    def add(self, name: str, result: dict[str, float]) -> None:
        """Adds a task, and writes the file."""
        self.results[name] = result
        if self._out and (self._out.is_file() or not self._out.exists()):
            write_whole(self._out.resolve(), json.dumps(self.report(), indent=1) + "\n")

    def read(self) -> None:
        """Takes over what a stopped evaluation of the same run, fields, tasks and data has finished."""
        if not (self._out and self._out.is_file()):
            raise UsageError(f"--resume: {self._out} does not exist, so no task is finished; leave --resume out")
        found = read_checked(self._out, dict, remedy="leave --resume out to begin again")
        results, requests = found.pop("results", {}), found.pop("requests", {})
        if different := first_difference(found, json.loads(json.dumps(self._about))):
            field, old, new = different
            raise UsageError(
                f"--resume: {field} is {shorten(new)}, and {shorten(old)} in {self._out}; give the same command, or "
                "leave --resume out to begin again"
            )
        of_tasks = {name: results[name] for name in self._about["tasks"] if name in results}  # no averages
        self.results = decode_json(of_tasks, dict[str, dict[str, int | float]])
        self._before = decode_json(requests, Requests)


def _digests(data: Path | None, names: Sequence[str]) -> dict[str, str] | None:
    """SHA-256 of the local files of tasks; None: the hub's sets."""
    if data is None:
        return None
    tasks = dict.fromkeys(name.partition("@")[0] for name in names)
    files = [file for task in tasks for file in sorted([data / f"{task}.jsonl", *data.glob(f"{task}.*.jsonl")])]
    return {file.name: file_sha256(file) for file in files}


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
    return textwrap.indent(text_table(rows, left=2), "  ")
