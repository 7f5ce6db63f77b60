"""`jaxzoo evaluate --run DIR --slices recall`: associative recall on a run's validation text.

Zoology, sec. 3.1 and App. C.1; `jaxzoo.evals.recall_slices` defines the slices.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from rich.console import Console

from jaxzoo.cli.evaluate import EvaluateCommand
from jaxzoo.cli.evaluate_common import OpenRun, open_run
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import prepare_jax, say
from jaxzoo.data.base import DataConfig
from jaxzoo.data.statistics.bigram_counts import THRESHOLD, BigramCounts
from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.evals.recall_examples import ScoredWindow, colored, draw_examples, examples, windows
from jaxzoo.evals.recall_report import EXAMPLES, RecallReport, check_directory, write_report
from jaxzoo.evals.recall_slices import MeasuredModel, RecallSums
from jaxzoo.evals.valid_tokens import check_same_tokens
from jaxzoo.evals.validation import Validation
from jaxzoo.utils.progress import show_progress


def evaluate_slices(command: EvaluateCommand, flags: Sequence[str]) -> None:
    """Measures, prints and writes; the flags are fields of the configs of all runs."""
    at_most = THRESHOLD if command.at_most is None else command.at_most
    paths = [*command.run, *([command.baseline] if command.baseline else [])]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"{path} is named twice; each run is measured once")
    names = [Path(path).absolute().name for path in paths]
    if len(set(names)) < len(names):
        names = paths
    if command.out is not None:
        check_directory(command.out)
    prepare_jax()
    runs = {name: open_run(path, flags, command.checkpoint) for name, path in zip(names, paths, strict=True)}
    digest = check_same_tokens({name: found.session for name, found in runs.items()})
    bigrams = None
    if command.bigrams is None:
        say("without --bigrams, the counts in training are unknown: slices are by repeats alone")
    else:
        bigrams = read_bigrams(command.bigrams, [found.session.config.data for found in runs.values()])
    kept: dict[str, list[ScoredWindow]] = {names[0]: [], names[-1]: []} if command.examples else {}
    report = RecallReport(
        [_measure(name, found, bigrams, at_most, kept.get(name)) for name, found in runs.items()],
        has_baseline=command.baseline is not None,
        at_most=None if bigrams is None else at_most,
        digest=digest,
    )
    if command.out is not None:
        write_report(command.out, report, title="Associative recall on validation text")
        say(f"written to {command.out}")
    print(report.markdown(), end="", flush=True)
    if command.examples:
        _show_examples(command, kept, runs[names[0]].session.config.data)


def _show_examples(command: EvaluateCommand, kept: Mapping[str, Sequence[ScoredWindow]], data: DataConfig) -> None:
    """Prints the examples, and draws them into the directory of the report."""
    assert command.examples is not None
    (run, ours), (baseline, theirs) = kept.items()
    tokenizer = data.tokenizer()
    decode = tokenizer.decode if tokenizer is not None else lambda ids: f" {ids[0]}"
    found = examples(ours, theirs, command.examples, decode)
    if command.out is not None:
        draw_examples(found, command.out / EXAMPLES, run=run, baseline=baseline)
    text = colored(found, run, baseline)
    if sys.stdout.isatty():
        Console(highlight=False).print(text, soft_wrap=True)
    else:
        print(text.plain, flush=True)


def read_bigrams(directory: str, data: Sequence[DataConfig]) -> BigramCounts:
    """Reads the bigram counts of `jaxzoo data-bigrams`.

    Raises `ValueError` if they are absent, or count tokens of other data or of another tokenizer.
    """
    bigrams = BigramCounts(Path(directory).expanduser())
    for each in data:
        if isinstance(each, TokenDataConfig) and each.path:
            bigrams.check_made_from(TokenDirectory(Path(each.path).expanduser()))
    counted = bigrams.fingerprint.rpartition(":")[0]
    for tokenizer in (each.tokenizer() for each in data):
        if tokenizer is not None and tokenizer.fingerprint != counted:
            raise ValueError(
                f"--bigrams {directory} counts tokens of {counted!r}, and these runs read tokens of "
                f"{tokenizer.fingerprint!r}; count the training tokens with jaxzoo data-bigrams"
            )
    return bigrams


def _measure(
    name: str, run: OpenRun, bigrams: BigramCounts | None, at_most: int, kept: list[ScoredWindow] | None
) -> MeasuredModel:
    """Measures a run; its windows are appended to `kept`."""
    sums = RecallSums(bigrams, at_most=at_most)
    n_batches = sum(valid_set.n_batches for valid_set in run.session.dataset.valid())
    with jax.set_mesh(run.session.mesh), show_progress("batches") as report:
        for i, (batch, nats) in enumerate(Validation(run.session).target_nats(run.variables), 1):
            sums.add(batch, nats)
            if kept is not None:
                kept += windows(batch, nats, sums)
            report(name, i, n_batches)
    return MeasuredModel(name, run.step, run.n_parameters, sums.sections(), sums.windows())
