"""`python -m jaxzoo.evaluate --run DIR --slices recall`: associative recall on a run's validation text.

Zoology, sec. 3.1 and App. C.1; what the slices are stands in `jaxzoo.evals.recall_slices`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxzoo.cli.config_file import import_file
from jaxzoo.cli.data_progress import PieceProgress
from jaxzoo.cli.evaluate_common import PROGRAM, check_variables
from jaxzoo.cli.flags import ArgumentParser, UsageError, override, which_checkpoint
from jaxzoo.cli.runner import say, use_compilation_cache
from jaxzoo.data.statistics.bigram_counts import THRESHOLD, BigramCounts

if TYPE_CHECKING:
    from jaxzoo.data.base import DataConfig
    from jaxzoo.evals.recall_slices import MeasuredModel
    from jaxzoo.models.blueprint import Variables
    from jaxzoo.train.session import Session
    from jaxzoo.train.trained import Which

DESCRIPTION = """Perplexity of a run on text by what could be recalled from the context (Zoology, sec. 3.1): AR hits are
tokens that end a bigram which stands earlier in the window and is rare in training. With --baseline, how much
of the gap between two models is due to them (App. C.1). Any field of the runs' configs can be overridden by its
dotted name, such as --data.length 512; it is overridden in all of them."""


class Candidate(NamedTuple):
    """A run that is to be measured."""

    name: str
    session: "Session"
    variables: "Variables"
    """In the host's memory."""
    step: int
    n_parameters: int


def evaluate_slices(argv: Sequence[str]) -> None:
    """Reads the command line `argv`, measures, prints and writes.

    Raises:
      ValueError: a mistake in it, or runs that cannot be measured or compared, in one line.
      OSError: a file cannot be read or written.
    """
    options, flags = _options().parse_known_args(argv)
    if options.help:
        print(_options().format_help())
        return
    names = _names(options)
    out = None if options.out is None else Path(options.out).expanduser()

    from jaxzoo.evals.recall_report import RecallReport, check_directory, write_report
    from jaxzoo.evals.valid_tokens import check_same_tokens

    if out is not None:
        check_directory(out)
    for file in options.config:
        import_file(Path(file))
    use_compilation_cache()
    candidates = [_candidate(name, path, flags, options.checkpoint) for name, path in names.items()]
    digest = check_same_tokens({c.name: c.session for c in candidates})
    data = [c.session.config.data for c in candidates]
    bigrams = None if options.bigrams is None else read_bigrams(options.bigrams, data)
    if bigrams is None:
        say("without --bigrams nothing is known of training: slices are by repeats alone")
    models = [_measure(candidate, bigrams, options.at_most) for candidate in candidates]
    at_most = None if bigrams is None else options.at_most
    report = RecallReport(models, has_baseline=options.baseline is not None, at_most=at_most, digest=digest)
    if out is not None:
        write_report(out, report, title="Associative recall on validation text")
        say(f"written to {out}")
    print(report.markdown(), end="", flush=True)


def read_bigrams(directory: str, data: Sequence["DataConfig"]) -> BigramCounts:
    """The bigram counts of training.

    Args:
      directory: made by `python -m jaxzoo.data.bigrams`.
      data: of all runs.

    Raises:
      ValueError: there are none, or they are of other tokens than a run learnt from: of a mixture, or of data that are
        no token shards, by another tokenizer.
    """
    from jaxzoo.data.token_data import TokenDataConfig
    from jaxzoo.data.tokens.token_shards import TokenDirectory

    bigrams = BigramCounts(Path(directory).expanduser())
    for each in data:
        if isinstance(each, TokenDataConfig) and each.path:
            bigrams.check_made_from(TokenDirectory(Path(each.path).expanduser()))
    counted = bigrams.fingerprint.rpartition(":")[0]
    for tokenizer in (each.tokenizer() for each in data):
        if tokenizer is not None and tokenizer.fingerprint != counted:
            raise ValueError(
                f"--bigrams {directory} counts tokens of {counted!r}, and these runs read tokens of "
                f"{tokenizer.fingerprint!r}; count those that they were trained on, with python -m jaxzoo.data.bigrams"
            )
    return bigrams


def _candidate(name: str, path: str, flags: Sequence[str], checkpoint: "Which") -> Candidate:
    """Reads a run, with fields of its config overridden.

    Raises:
      ValueError: there is no such run or checkpoint; or, with these fields, no such config, data or variables.
    """
    import jax

    from jaxzoo.models.accounting import count_parameters
    from jaxzoo.train.session import Session
    from jaxzoo.train.trained import load_variables, read_run

    directory, trained = read_run(Path(path).expanduser())
    blueprint, variables, seal = load_variables(directory, trained, checkpoint)
    try:
        session = Session(override(trained, flags, prog=PROGRAM), limited=True)
        check_variables(blueprint, session.blueprint)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    n = count_parameters(blueprint.model(variables))
    say(f"{name}: {path}, {n:,} parameters, checkpoint {seal.step}")
    return Candidate(name, session, jax.device_get(variables), seal.step, n)


def _measure(candidate: Candidate, bigrams: BigramCounts | None, at_most: int) -> "MeasuredModel":
    import jax

    from jaxzoo.evals.recall_slices import MeasuredModel, RecallSums

    sums = RecallSums(bigrams, at_most=at_most)
    session = candidate.session
    n_batches = sum(valid_set.n_batches for valid_set in session.dataset.valid())
    progress = PieceProgress("batches")
    with jax.set_mesh(session.mesh):
        for i, (batch, nats) in enumerate(session.target_nats(candidate.variables)):
            sums.add(batch, nats)
            progress(candidate.name, i + 1, n_batches)
    return MeasuredModel(candidate.name, candidate.step, candidate.n_parameters, sums.sections())


def _names(options: argparse.Namespace) -> dict[str, str]:
    """The runs by their names in the tables, the baseline last: the last parts of their paths where these differ."""
    if options.slices != "recall":
        raise UsageError(f"--slices {options.slices}: there is recall alone")
    if not options.run:
        raise UsageError("--run DIR is required, such as runs/lm-based_tiny; see --help")
    if options.at_most < 0:
        raise UsageError(f"--at-most {options.at_most} must not be negative")
    paths = [*options.run, *([] if options.baseline is None else [options.baseline])]
    names = [Path(path).absolute().name for path in paths]
    if len(set(names)) < len(names):
        names = paths
    if len(set(names)) < len(names):
        raise UsageError(f"{next(p for p in paths if paths.count(p) > 1)} is named twice; each run is measured once")
    return dict(zip(names, paths, strict=True))


def _options() -> argparse.ArgumentParser:
    """Options other than the configs' fields."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this help")
    add("--slices", metavar="KIND", help="recall")
    add("--run", metavar="DIR", action="append", default=[], help="directory of a run on text; may be given repeatedly")
    add("--baseline", metavar="DIR", help="the run that the gap is measured to, such as attention's")
    add("--bigrams", metavar="DIR", help="counts of training, by python -m jaxzoo.data.bigrams; default: repeats alone")
    rare = f"occurrences in training up to which a bigram is rare; default: {THRESHOLD}"
    add("--at-most", metavar="N", type=int, default=THRESHOLD, help=rare)
    checkpoint = "step of the checkpoints, or best: those with the best validations; default: the newest of each"
    add("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    add("--config", metavar="FILE", action="append", default=[], help="a run's config file, where it defines classes")
    add("--out", metavar="DIR", help="also writes recall.json, table.md and recall.png there")
    return parser
