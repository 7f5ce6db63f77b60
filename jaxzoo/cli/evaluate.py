"""`jaxzoo evaluate --run DIR`: scores a trained model on validation sets, text slices or tasks."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from jaxzoo.cli.flags import Repeated, StoredRunOptions, UsageError, flag, output_file
from jaxzoo.cli.runner import command_line, prepare_jax
from jaxzoo.cli.user_files import import_files
from jaxzoo.config.checked import NonNegativeInt, PositiveInt

OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "slices": ("baseline", "bigrams", "at_most", "examples"),
    "tasks": ("data", "limit", "batch_size", "scorer", "bos", "resume"),
}
"""Options that belong to --slices and --tasks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateCommand(StoredRunOptions):
    """Scores a trained model on the validation sets of its run. Any field of the run's config can be overridden by its
    dotted name, such as --model.pattern.0.rotary-scaling.factor 4, as long as the model keeps its variables. Add --run
    DIR to this --help to see all fields of that run.

    With --slices recall: perplexity of runs on text, separately for tokens that could be recalled from the context
    (Zoology, sec. 3.1): AR hits are tokens that end a bigram which occurs earlier in the window and is rare in
    training. With --baseline, also the share of the gap between two models that is due to them (App. C.1).

    With --tasks: the recall tasks fda, swde, squad_completion (Based, Tables 1 to 3) and records (made by jaxzoo
    tasks-records), and any other task of lm_eval by name, such as lambada_openai, hellaswag, piqa, arc_easy,
    arc_challenge, winogrande, super-glue-lm-eval-v1. Prompts that are longer than the model's max_length lose their
    beginning, which the report counts."""

    run: Annotated[Repeated, flag("DIR")] = ()
    """Directory of the run; nothing is written there. With --slices it may be repeated."""
    out: Annotated[Path | None, flag("FILE")] = None
    """Write config and metrics to this file, as JSON; with --slices, a directory for table, numbers and picture."""

    slices: Annotated[Literal["recall"] | None, flag()] = None
    """Measure associative recall on text."""
    baseline: Annotated[str | None, flag("DIR")] = None
    """With --slices: run from which the gap is measured, such as that of attention."""
    bigrams: Annotated[str | None, flag("DIR")] = None
    """With --slices: counts of the training tokens, by jaxzoo data-bigrams; default: repeats only."""
    at_most: Annotated[NonNegativeInt | None, flag("N")] = None
    """With --slices: a bigram is rare up to this number of occurrences in training; default: 1,250."""
    examples: Annotated[PositiveInt | None, flag("N")] = None
    """With --slices and --baseline: print N windows where the first run loses most on AR hits, in colours; with --out
    also as examples.png (Zoology, App. D.1.1)."""

    tasks: Annotated[tuple[str, ...] | None, flag("NAME")] = None
    """Tasks of lm_eval by name, TASK@K with K examples in the prompt, YAML files, based-table-2, based-table-3."""
    data: Annotated[Path | None, flag("DIR")] = None
    """With --tasks: directory with TASK.jsonl for every task, the rows of the scored split of its data set on the hub
    (for recall tasks, objects with text and value); default: fetched from the hub by lm_eval."""
    limit: Annotated[PositiveInt | None, flag("N")] = None
    """With --tasks: the first N examples of each task; default: all."""
    batch_size: Annotated[PositiveInt | None, flag("N")] = None
    """With --tasks: rows of a batch; default: 8."""
    scorer: Annotated[Literal["lm_eval", "own"] | None, flag()] = None
    """With --tasks, own: the recall tasks without lm_eval, with the same numbers; default: lm_eval if installed."""
    bos: Annotated[Literal["auto", "yes", "no"] | None, flag()] = None
    """With --tasks: begin-of-text tokens before every text: as in the tokenizer's template (auto), one, or none."""
    resume: bool = False
    """With --tasks: continue a stopped evaluation, without the tasks that --out has."""

    def __post_init__(self) -> None:
        forms = [form for form in OPTIONS_OF if getattr(self, form) is not None]
        if len(forms) > 1:
            raise UsageError("--slices and --tasks are two commands; give one of them")
        for form, names in OPTIONS_OF.items():
            given = [name for name in names if getattr(self, name) not in (None, False)]
            if form not in forms and given:
                raise UsageError(f"--{given[0].replace('_', '-')} belongs to --{form}; see --help")
        if self.examples and not self.baseline:
            raise UsageError("--examples compares the first run with a baseline; add --baseline DIR")
        if self.resume and self.out is None:
            raise UsageError("--resume needs --out FILE, the file of the evaluation that was stopped")
        if len(self.run) > 1 and not self.slices:
            remedy = "jaxzoo compare RUN RUN ... scores several on the same data"
            raise UsageError(f"--run takes one run; {remedy}")


@command_line(selector="run", out_of_memory="out of memory; try a smaller --train.valid-batch-size")
def main(command: EvaluateCommand, flags: Sequence[str]) -> None:
    if not command.run:
        raise UsageError("--run DIR is required, such as runs/mqar-based; see --help")
    if command.out is not None:
        out = output_file("--out", command.out, or_folder=command.slices is not None)
        command = dataclasses.replace(command, out=out)
    import_files(command.config)
    if command.slices is not None:
        from jaxzoo.cli.evaluate_slices import evaluate_slices

        evaluate_slices(command, flags)
    elif command.tasks is not None:
        from jaxzoo.cli.evaluate_tasks import evaluate_tasks

        evaluate_tasks(command, flags)
    else:
        from jaxzoo.cli.evaluate_common import open_run, write_results
        from jaxzoo.config.config_io import to_json
        from jaxzoo.evals.validation import metrics_table

        prepare_jax()
        found = open_run(command.run[0], flags, command.checkpoint)
        metrics = found.evaluate()
        report = {"run": str(found.directory), "step": found.step, "config": to_json(found.session.config)}
        guessing = found.session.config.data.guessing_lines()
        write_results(metrics_table(metrics, guessing), command.out, {**report, "metrics": metrics})
