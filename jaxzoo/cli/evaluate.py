"""`python -m jaxzoo.evaluate --run DIR`: a trained model on its validation sets, or on others.

Any field of the run's config is a flag, so that a model can be asked what it was not trained for: longer examples, more
pairs, slower rotary positions. The fields may change what the model computes, not which variables it has.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxzoo.cli.flags import ArgumentParser, UsageError, output_file, positive, which_checkpoint
from jaxzoo.cli.runner import Main, prepare_jax, run
from jaxzoo.cli.user_files import import_files
from jaxzoo.data.statistics.bigram_counts import THRESHOLD

DESCRIPTION = """Scores a trained model on the validation sets of its run; with --slices, its associative recall on
text; with --tasks, on recall tasks and those of lm_eval. Any field of the run's config can be overridden by its dotted
name, such as --model.pattern.0.rotary-scaling.factor 4: those of the data say what is asked, those of the model how it
answers, as long as it has the same variables. Add --run DIR to this --help to see all fields of that run."""

SLICES = """Perplexity of runs on text, separately for tokens that could be recalled from the context (Zoology, sec.
3.1): AR hits are tokens that end a bigram which occurs earlier in the window and is rare in training. With --baseline,
also the share of the gap between two models that is due to them (App. C.1). Fields of the config are overridden in all
runs."""

TASKS = """The recall tasks fda, swde, squad_completion (Based, Tables 1 to 3) and records (made by python -m
jaxzoo.tasks.records), and any other task of lm_eval by name, such as lambada_openai, hellaswag, piqa, arc_easy,
arc_challenge, winogrande, super-glue-lm-eval-v1. Prompts that are longer than the model's max_length lose their
beginning, which the report counts."""

OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "slices": ("baseline", "bigrams", "at_most"),
    "tasks": ("data", "limit", "batch_size", "scorer", "resume"),
}
"""Options that belong to --slices and --tasks."""


def _evaluate(argv: Sequence[str]) -> None:
    options, flags = _options().parse_known_args(argv)
    forms = [form for form in OPTIONS_OF if getattr(options, form) is not None]
    if options.help:
        print(_options().format_help())
        if forms or not options.run:
            return
        flags = [*flags, "--help"]
    if len(forms) > 1:
        raise UsageError("--slices and --tasks are two commands; give one of them")
    for form, names in OPTIONS_OF.items():
        if form not in forms and (given := next((n for n in names if getattr(options, n) is not None), None)):
            raise UsageError(f"--{given.replace('_', '-')} belongs to --{form}; see --help")
    if not options.run:
        raise UsageError("--run DIR is required, such as runs/mqar-based; see --help")
    if len(options.run) > 1 and forms != ["slices"]:
        raise UsageError("--run takes one run; python -m jaxzoo.compare RUN RUN ... scores several on the same data")
    if options.out is not None:
        options.out = output_file("--out", options.out, or_folder=forms == ["slices"])
    import_files(options.config)
    if forms == ["slices"]:
        from jaxzoo.cli.evaluate_slices import evaluate_slices

        evaluate_slices(options, flags)
    elif forms == ["tasks"]:
        from jaxzoo.cli.evaluate_tasks import evaluate_tasks

        evaluate_tasks(options, flags)
    else:
        from jaxzoo.cli.evaluate_common import open_run, write_results
        from jaxzoo.config.config_io import to_json
        from jaxzoo.evals.validation import metrics_table

        prepare_jax()
        found = open_run(options.run[0], flags, options.checkpoint)
        metrics = found.evaluate()
        report = {"run": str(found.directory), "step": found.step, "config": to_json(found.session.config)}
        write_results(metrics_table(metrics), options.out, {**report, "metrics": metrics})


def _options() -> argparse.ArgumentParser:
    """Options other than the config's fields."""
    parser = ArgumentParser(
        prog="python -m jaxzoo.evaluate", description=DESCRIPTION, add_help=False, allow_abbrev=False
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this help")
    add("--run", metavar="DIR", action="append", default=[], help="directory of the run; nothing is written there")
    checkpoint = "step of the checkpoint, or best: that with the best validation; default: the newest"
    add("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    config = "the run's config file; needed where it defines classes of its own"
    add("--config", metavar="FILE", type=Path, action="append", default=[], help=config)
    out = "write config and metrics to this file, as JSON; with --slices, a directory for table, numbers and picture"
    add("--out", metavar="FILE", type=Path, help=out)

    add = parser.add_argument_group("associative recall on text", SLICES).add_argument
    add("--slices", metavar="recall", help="measure recall; --run may be repeated")
    add("--baseline", metavar="DIR", help="run from which the gap is measured, such as that of attention")
    bigrams = "counts of the training tokens, by python -m jaxzoo.data.bigrams; default: repeats only"
    add("--bigrams", metavar="DIR", help=bigrams)
    rare = f"a bigram is rare up to this number of occurrences in training; default: {THRESHOLD}"
    add("--at-most", metavar="N", type=int, help=rare)

    add = parser.add_argument_group("tasks", TASKS).add_argument
    tasks = "tasks of lm_eval by name, TASK@K with K examples in the prompt, YAML files, based-table-2, based-table-3"
    add("--tasks", metavar="NAME", nargs="*", help=tasks)
    data = (
        "directory with TASK.jsonl for every task: the rows of the scored split of its data set on the hub "
        "(for recall tasks, objects with text and value); default: fetched from the hub by lm_eval"
    )
    add("--data", metavar="DIR", type=Path, help=data)
    add("--limit", metavar="N", type=positive, help="the first N examples of each task; default: all")
    bos = "begin-of-text tokens before every text: those of the tokenizer's template (auto), one always, or none"
    add("--bos", choices=("auto", "yes", "no"), default=None, help=f"with --tasks: {bos}")
    add("--batch-size", metavar="N", type=positive, help="rows of a batch; default: 8")
    scorer = "own: the recall tasks without lm_eval, with the same numbers; default: lm_eval if it is installed"
    add("--scorer", choices=("lm_eval", "own"), help=scorer)
    resume = "go on with the evaluation that was stopped: the tasks that --out has are not asked again"
    add("--resume", action="store_true", default=None, help=resume)
    return parser


main: Main = partial(run, _evaluate, out_of_memory="out of memory; try a smaller --train.valid-batch-size")
