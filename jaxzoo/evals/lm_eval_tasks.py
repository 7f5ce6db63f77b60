"""Tasks of lm_eval on our models: by name, with the hub's data or with local files.

Local data of a task are `DIR/TASK.jsonl`: the rows of the split that the task scores (test, or validation if it has no
test split), with the columns of its set on the hub that `COLUMNS` lists. `TASK@K` puts K examples before each question,
from the split that lm_eval draws them from, mostly `DIR/TASK.train.jsonl`.
"""

import functools
import importlib.util
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.checked import nearest
from jaxzoo.evals.recall_tasks import MAX_TOKENS, RECALL_TASKS, STOPS, read_examples, read_rows
from jaxzoo.evals.squad_metrics import in_place_of_transformers
from jaxzoo.evals.text_model import TextModel

Results = dict[str, dict[str, float]]
"""Metrics by task: each value, its standard error as `METRIC_stderr`, and `n`, the number of examples."""

COLUMNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(RECALL_TASKS, ("text", "value")),
    "lambada_openai": ("text",),
    "hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    "piqa": ("goal", "sol1", "sol2", "label"),
    **dict.fromkeys(("arc_easy", "arc_challenge"), ("question", "choices", "answerKey")),
    "winogrande": ("sentence", "option1", "option2", "answer"),
    "boolq": ("passage", "question", "label"),
    **dict.fromkeys(("cb", "sglue_rte"), ("premise", "hypothesis", "label")),
    "copa": ("premise", "choice1", "choice2", "question", "label"),
    "multirc": ("paragraph", "question", "answer", "label"),
    "record": ("passage", "query", "entities", "answers"),
    "wic": ("sentence1", "sentence2", "start1", "end1", "label"),
    "wsc": ("text", "span1_text", "span2_text", "span2_index", "label"),
    "wikitext": ("page",),
}
"""The columns that a task reads. `endings`, `entities` and `answers` are lists of strings, `choices` an object of the
lists `text` and `label`; `label` is an index from 0, in HellaSwag as a string; `answer` of WinoGrande is "1" or "2",
`question` of COPA "cause" or "effect"."""

LANGUAGE: dict[str, tuple[str, ...]] = {
    "lambada_openai": ("acc",),
    "hellaswag": ("acc_norm",),
    "piqa": ("acc",),
    "arc_easy": ("acc",),
    "arc_challenge": ("acc_norm",),
    "winogrande": ("acc",),
}
SUPER_GLUE: dict[str, tuple[str, ...]] = {
    "boolq": ("acc",),
    "cb": ("acc", "f1"),
    "copa": ("acc",),
    "multirc": ("acc",),
    "record": ("f1", "em"),
    "sglue_rte": ("acc",),
    "wic": ("acc",),
    "wsc": ("acc",),
}
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "based-table-2": {f"{name}@0": metrics for name, metrics in LANGUAGE.items()},
    **{
        f"based-table-3@{shots}": {f"{name}@{shots}": metrics for name, metrics in SUPER_GLUE.items()}
        for shots in (0, 1, 5)
    },
}
"""Tables of Based (App. D.2): the tasks of a row, with the metrics that its average is over. `based-table-3` is the
three rows of SuperGLUE at 0, 1 and 5 shots."""

FEWSHOT_SEED = 1234
"""lm_eval's default."""


class Shots(NamedTuple):
    """Task and number of examples in the prompt."""

    task: str
    shots: int | None
    """None: the task's own default, mostly 0."""

    @classmethod
    def parse(cls, name: str) -> "Shots":
        """Parses a name: `boolq@5` is task boolq at 5 shots. Raises `ValueError` if no number follows the @, or for a
        recall task."""
        task, at, shots = name.partition("@")
        if at and not shots.isdecimal():
            raise ValueError(f"task {name!r}: TASK@K takes a number of examples, such as {task}@5")
        if at and int(shots) and task in RECALL_TASKS:
            raise ValueError(f"task {name!r}: recall tasks have no examples in the prompt; take {task}")
        return cls(task, int(shots) if at else None)


def task_names(names: Sequence[str]) -> list[str]:
    """Returns the tasks for names of tasks, of `GROUPS`, of tags, such as `super-glue-lm-eval-v1`, and of YAML files,
    in order. Raises `ValueError` for an unknown name, or a group of lm_eval, which weights its tasks; for a file that
    is missing or names no task."""
    found = []
    names = [_task_of_file(Path(name)) if name.endswith((".yaml", ".yml")) else name for name in names]
    for name in names:
        if groups := groups_of(name):
            found += [task for group in groups for task in GROUPS[group]]
            continue
        task, _ = Shots.parse(name)
        if task in RECALL_TASKS or task in _manager().all_subtasks:
            found.append(name)
        elif name in _manager().all_tags:
            found += sorted(_manager().task_index[name].tags)
        elif name in _manager().all_groups:
            raise ValueError(f"task {name!r} is a group of lm_eval; name its tasks")
        else:
            raise ValueError(f"task {name!r} is unknown to lm_eval{nearest(name, [*GROUPS, *_manager().all_tasks])}")
    return list(dict.fromkeys(found))


def groups_of(name: str) -> list[str]:
    """Returns the groups of a name: itself, or all of a table."""
    return [group for group in GROUPS if group == name or group.startswith(f"{name}@")]


def averages(names: Sequence[str], results: Results) -> Results:
    """Returns averages of the groups among `names`, as in the paper: over each task's metrics, then over tasks."""
    found: Results = {}
    for group in (group for name in names for group in groups_of(name)):
        means = [sum(results[task][m] for m in metrics) / len(metrics) for task, metrics in GROUPS[group].items()]
        found[group] = {"average": sum(means) / len(means), "n": len(means)}
    return found


def _task_of_file(file: Path) -> str:
    """Returns the name of the task in a YAML file; from now on lm_eval knows all tasks in its folder."""
    if not file.is_file():
        raise ValueError(f"--tasks {file} does not exist; it must be a YAML file of lm_eval, or the name of a task")
    named = re.search(r"^task:\s*[\"']?([\w.-]+)", file.read_text(), re.MULTILINE)
    if not named:
        raise ValueError(f"--tasks {file} names no task; a YAML file of lm_eval has a line such as task: my_task")
    if (folder := str(file.absolute().parent)) not in _FOLDERS:
        _FOLDERS.append(folder)
        _manager.cache_clear()
    return named[1]


def score_tasks(
    model: TextModel,
    names: Sequence[str],
    *,
    data: Path | None = None,
    limit: int | None = None,
    finished: Callable[[str, dict[str, float]], None] = lambda name, result: None,
) -> Results:
    """Runs the tasks of `task_names` through lm_eval. `data` is a directory with a file per task; None: the Hugging
    Face hub. `limit` selects the first examples of each task. `finished` receives name and result of each finished
    task. Raises `ValueError` or `OSError` for a file, a set on the hub, or a request of a task that cannot be used."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # a bootstrap in forked processes may deadlock on JAX's threads
    for name in ("lm_eval", "datasets", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    parsed = {name: Shots.parse(name) for name in names}
    loaded = {shots: _with_shots(parsed.values(), shots, data, limit) for _, shots in parsed.values()}
    results: Results = {}
    for name, (task, shots) in parsed.items():
        results[name] = _scored(model, task, loaded[shots][task], limit)
        finished(name, results[name])
    return results


def _with_shots(wanted: Iterable[Shots], shots: int | None, data: Path | None, limit: int | None) -> dict[str, Any]:
    """Loads the tasks with this number of shots."""
    names = [task for task, its in wanted if its == shots]
    tasks = _local_tasks(names, data, limit) if data else _hub_tasks(names)
    for name, task in tasks.items():
        task.set_config("num_fewshot", task.config.num_fewshot or 0 if shots is None else shots)
        task.set_fewshot_seed(FEWSHOT_SEED)
        if data and task.config.num_fewshot:
            _check_examples(name, task.config, data)
    if "squad_completion" in tasks:  # else defaults of all configs hide the task's own
        own = {"until": list(STOPS), "max_gen_toks": MAX_TOKENS, "do_sample": False}
        tasks["squad_completion"].set_config("generation_kwargs", own)
    return tasks


def _check_examples(name: str, config: Any, data: Path) -> None:
    """Refuses examples that would be the questions themselves, with their answers."""
    scored = config.test_split or config.validation_split
    source = config.fewshot_split or config.training_split or config.validation_split or scored
    file = data / f"{name}.{source}.jsonl"
    shots = config.num_fewshot
    if source != scored and not file.is_file():
        raise ValueError(
            f"task {name}@{shots}: {file} does not exist; it must hold the rows of the split {source!r}, which the "
            "examples are drawn from"
        )
    file = file if file.is_file() else data / f"{name}.jsonl"
    n_rows = len(set(file.read_text(encoding="utf-8").splitlines()))
    if n_rows <= shots:  # one of them may be the question itself
        raise ValueError(f"task {name}@{shots}: {file} has {n_rows} different rows and must have more than {shots}")


def _scored(model: TextModel, name: str, task: Any, limit: int | None) -> dict[str, float]:
    from lm_eval.evaluator import evaluate

    from jaxzoo.evals.lm_eval_model import LMEvalModel

    found: Any = evaluate(
        lm=LMEvalModel(model), task_dict={"tasks": {name: task}}, limit=limit, bootstrap_iters=100, log_samples=False
    )
    # `acc,none` as `acc`, a metric with a filter as `acc,filter`; values that are not finite numbers are left out.
    numbers = {key: x for key, x in found["results"][name].items() if isinstance(x, int | float) and "," in key}
    metrics = {key.removesuffix(",none"): float(x) for key, x in numbers.items() if math.isfinite(x)}
    return {**metrics, "n": found["n-samples"][name]["effective"]}


def _hub_tasks(names: Sequence[str]) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for name in names:
        if RECALL_TASKS.get(name) == "":
            raise ValueError(f"task {name!r} has no set on the hub; make one by jaxzoo tasks-records")
        try:
            tasks |= _load(name)
        except OSError as error:
            reason = " ".join(str(error).split())[:200]
            raise OSError(
                f"the data of task {name!r} cannot be loaded from the Hugging Face hub ({reason}); give --data DIR "
                f"with DIR/{name}.jsonl"
            ) from error
    return tasks


def _local_tasks(names: Sequence[str], data: Path, limit: int | None) -> dict[str, Any]:
    import jinja2

    tasks: dict[str, Any] = {name: _local_recall_task(name, data, limit) for name in names if name in RECALL_TASKS}
    for name in names:
        if name in tasks:
            continue
        try:  # a task that is a config; lm_eval tries its first row at once
            tasks |= _load(name, custom_dataset=lambda name=name, **options: _Splits(data, name))
        except (LookupError, TypeError, jinja2.UndefinedError) as error:
            raise ValueError(
                f"{data / name}.jsonl: the rows must have the columns of the task's set on the hub "
                f"({type(error).__name__}: {error})"
            ) from error
    return {name: tasks[name] for name in names}


_FOLDERS: list[str] = []
"""Folders with the user's YAML files of tasks."""


@functools.cache
def _manager() -> Any:
    """Returns the index of all tasks; the first call reads thousands of files."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=list(_FOLDERS) or None)


def _load(name: str, **own: Any) -> dict[str, Any]:
    """Loads a task by name, with fields of our own in its config."""
    load = lambda: _manager().load([{"group": "one", "task": [{"task": name, **own}]}])["tasks"]  # noqa: E731
    try:
        if name == "record" and importlib.util.find_spec("transformers") is None:
            with in_place_of_transformers():
                return load()
        return load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"lm_eval's code for task {name!r} needs the library {error.name!r}; pip install it"
        ) from error


def _local_recall_task(name: str, data: Path, limit: int | None) -> Any:
    """Makes lm_eval's task with local data; `records` is scored as `fda`."""
    from lm_eval.tasks.fda.task import FDA
    from lm_eval.tasks.squad_completion.task import SQUADCompletion
    from lm_eval.tasks.swde.task import SWDE

    read_examples(data / f"{name}.jsonl", limit)
    dataset = _Splits(data, name)

    def download(self: Any, dataset_kwargs: Any = None, **options: Any) -> None:
        self.dataset = dataset

    base = {"swde": SWDE, "squad_completion": SQUADCompletion}.get(name, FDA)
    task = type(f"Local{base.__name__}", (base,), {"download": download})()
    task.config.task = name
    return task


class _Splits(dict):
    """Splits of a task's local set: `DIR/TASK.SPLIT.jsonl` if it exists, else `DIR/TASK.jsonl`."""

    def __init__(self, data: Path, name: str):
        super().__init__()
        self._data = data
        self._name = name
        self._shared = _read(data / f"{name}.jsonl", name)

    def __missing__(self, split: str) -> Any:
        own = self._data / f"{self._name}.{split}.jsonl"
        self[split] = _read(own, self._name) if own.is_file() else self._shared
        return self[split]


def _read(file: Path, name: str) -> Any:
    import datasets

    rows = read_rows(file)
    for number, row in enumerate(rows, 1):
        missing = [column for column in COLUMNS.get(name, ()) if column not in row]
        if missing:
            raise ValueError(f"{file}:{number}: {missing[0]} is missing, which the task reads")
    try:
        return datasets.Dataset.from_list(rows)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: all rows must have columns of the same types ({error})") from error
