"""`jaxzoo evaluate --run DIR --tasks fda swde ...`: a trained language model on recall tasks and others.

Tasks are lm_eval's, by name, with the data of the Hugging Face hub or local files; the recall tasks of Based
also run without lm_eval. `--out` is written after each task, and `--resume` runs the missing tasks.
"""

import importlib.util
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxzoo.cli.evaluate import EvaluateCommand
from jaxzoo.cli.evaluate_common import PROGRAM, check_variables, write_results
from jaxzoo.cli.flags import UsageError, override
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
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked, variables_digest
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.text_table import text_table
from jaxzoo.utils.whole_files import write_whole


def evaluate_tasks(command: EvaluateCommand, flags: Sequence[str]) -> None:
    """Scores a model on tasks, prints and writes; the flags are fields of the run's config."""
    if not command.tasks:
        raise UsageError("--tasks must name at least one, such as fda; see --help")
    data = command.data and command.data.expanduser()
    if data is not None:
        # lm_eval's libraries read these at import, and then do not access the hub
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
            os.environ.setdefault(name, "1")
    scorer = _scorer(command.tasks, command.scorer)
    prepare_jax()
    names = _task_names(command.tasks, scorer, data)

    path = command.run[0]
    directory, config = read_run(Path(path).expanduser())
    asked = override(config, flags, prog=PROGRAM)
    loaded = load(directory.path, command.checkpoint, text=True)
    assert loaded.tokenizer
    loaded.tokenizer.choose_begin(command.bos or "auto")
    blueprint = make_blueprint(asked.model)
    check_variables(path, make_blueprint(config.model), blueprint)
    n = count_parameters(loaded.model)
    say(f"{path}: {n:,} parameters, checkpoint {loaded.step}, {jax.devices()[0].device_kind}")
    with show_progress("requests") as report:
        model = TextModel(
            blueprint.model(split_variables(loaded.model)),
            loaded.tokenizer,
            batch_size=command.batch_size or 8,
            report=report,
        )
        about = {
            "run": directory.path.name,
            "step": loaded.step,
            "variables": variables_digest(split_variables(loaded.model)),
            "config": to_json(asked),
            "max_length": model.max_length,
            "scorer": scorer,
            "limit": command.limit,
            "begin": list(loaded.tokenizer.begin),
            "begin_without_context": model.start.tolist(),
            "tasks": names,
            "data": _digests(data, names),
        }
        done = FinishedTasks(command.out, about, model)
        if command.resume:
            done.read()
            say(f"{len(done.results)} of {len(names)} tasks are finished in {command.out}")
        left = [name for name in names if name not in done.results]
        if scorer == "lm_eval":
            from jaxzoo.evals.lm_eval_tasks import averages, score_tasks

            score_tasks(model, left, data=data, limit=command.limit, finished=done.add)
            done.results |= averages(command.tasks, done.results)
        elif data is not None:
            examples = {name: read_examples(data / f"{name}.jsonl", command.limit) for name in left}
            for name in left:
                done.add(name, score_recall(model, examples[name]))
    truncated = done.requests.truncated
    total = done.requests.total
    say(f"{truncated:,} of {total:,} requests lost their beginning; the model reads {model.max_length:,} tokens")
    write_results(table(done.results), command.out, done.report())


class FinishedTasks:
    """Results by task, kept in the file of `--out` after each.

    Args:
      out: the file; None, or no regular file: nothing is kept before the end.
      about: settings, JSON-able; an evaluation is resumed only with the same settings. `tasks` are all task names.
      model: counts the requests.
    """

    def __init__(self, out: Path | None, about: Mapping[str, Any], model: TextModel):
        self._out = out
        self._about = about
        self._model = model
        self._before = Requests(0, 0)
        self.results: dict[str, dict[str, float]] = {}

    @property
    def requests(self) -> Requests:
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
        """Reads the finished tasks of a stopped evaluation of the same run, fields, tasks and data."""
        if not (self._out and self._out.is_file()):
            raise UsageError(f"--resume: {self._out} does not exist, so no task is finished; leave --resume out")
        found = read_checked(self._out, dict, remedy="leave --resume out to begin again")
        results = found.pop("results", {})
        requests = found.pop("requests", {})
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


def _scorer(tasks: Sequence[str], asked: str | None) -> str:
    """Returns the scorer of the tasks: lm_eval, or own. Raises `UsageError` if it cannot run them."""
    is_installed = importlib.util.find_spec("lm_eval") is not None
    scorer = asked or ("lm_eval" if is_installed else "own")
    if scorer == "lm_eval" and not is_installed:
        raise UsageError("--scorer lm_eval needs the library 'lm_eval'; pip install -e '.[eval]'")
    others = [name for name in tasks if name not in RECALL_TASKS]
    if scorer == "own" and others:
        remedy = "leave out --scorer own"
        if not is_installed:
            remedy = "it needs the library 'lm_eval'; pip install -e '.[eval]'"
        raise UsageError(f"task {others[0]!r} must be one of {', '.join(RECALL_TASKS)}, which we score; {remedy}")
    return scorer


def _task_names(tasks: Sequence[str], scorer: str, data: Path | None) -> list[str]:
    """Returns the names of all tasks; refuses absent files before anything is loaded."""
    names = list(dict.fromkeys(tasks))
    if scorer == "lm_eval":
        from jaxzoo.evals.lm_eval_tasks import task_names

        names = task_names(tasks)
    if data is None:
        if scorer == "own" or "records" in names:
            raise UsageError(f"--data DIR is required: DIR/{names[0]}.jsonl would be read; see --help")
        return names
    for task in (name.partition("@")[0] for name in names):
        file = data / f"{task}.jsonl"
        if not file.is_file():
            rows = RECALL_TASKS.get(task) or "its set"
            raise UsageError(f"task {task}: {file} does not exist; it must hold the rows of {rows}, a line each")
    return names


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
