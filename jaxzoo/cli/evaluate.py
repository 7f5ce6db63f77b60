"""`python -m jaxzoo.evaluate --run DIR`: a trained model on its validation sets, or on others.

Any field of the run's config is a flag, so that a model can be asked what it was not trained for: longer examples, more
pairs, slower rotary positions. The fields may change what the model computes, not which variables it has.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.cli.config_file import import_file
from jaxzoo.cli.evaluate_common import PROGRAM, check_out, check_variables, write_results
from jaxzoo.cli.flags import ArgumentParser, UsageError, override, which_checkpoint
from jaxzoo.cli.runner import run, say, use_compilation_cache

DESCRIPTION = """Scores a trained model on the validation sets of its run. Any field of the run's config can be
overridden by its dotted name, such as --model.pattern.0.rotary-scaling.factor 4: those of the data say what
is asked, those of the model how it answers, as long as it has the same variables. Add --run DIR to this
--help to see all fields of that run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_evaluate, argv, out_of_memory="out of memory; try a smaller --train.valid-batch-size")


def _evaluate(argv: Sequence[str]) -> None:
    asked = {word.split("=")[0] for word in argv}
    if "--slices" in asked and "--tasks" in asked:
        raise UsageError("--slices and --tasks are two commands; give one of them")
    if "--slices" in asked:
        from jaxzoo.cli.evaluate_slices import evaluate_slices

        evaluate_slices(argv)
        return
    if "--tasks" in asked:
        from jaxzoo.cli.evaluate_tasks import evaluate_tasks

        evaluate_tasks(argv)
        return
    if sum(word.partition("=")[0] == "--run" for word in argv) > 1:
        raise UsageError("--run takes one run; python -m jaxzoo.compare RUN RUN ... scores several on the same data")
    options, flags = _options().parse_known_args(argv)
    if options.help:
        print(_options().format_help())
        if options.run is None:
            return
    if options.run is None:
        raise UsageError("--run DIR is required, such as runs/mqar-based; see --help")
    out = check_out(options.out)
    if options.config is not None:
        import_file(Path(options.config))

    import jax

    from jaxzoo.config_io import to_json
    from jaxzoo.models.accounting import count_parameters
    from jaxzoo.train.progress import table
    from jaxzoo.train.session import Session
    from jaxzoo.train.trained import load_variables, read_run

    directory, trained = read_run(Path(options.run).expanduser())
    config = override(trained, [*flags, *(["--help"] if options.help else [])], prog=PROGRAM)
    use_compilation_cache()
    session = Session(config, limited=True)
    blueprint, variables, seal = load_variables(directory, trained, options.checkpoint)
    check_variables(blueprint, session.blueprint)
    n = count_parameters(blueprint.model(variables))
    say(f"{options.run}: {n:,} parameters, checkpoint {seal.step}, {jax.devices()[0].device_kind}")
    with jax.set_mesh(session.mesh):
        metrics = session.evaluate(variables)
    report = {"run": str(directory.path), "step": seal.step, "config": to_json(config), "metrics": metrics}
    write_results(table(metrics), out, report)


def _options() -> argparse.ArgumentParser:
    """Options other than the config's fields."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--run", metavar="DIR", help="directory of the run; nothing is written there")
    checkpoint = "step of the checkpoint, or best: that with the best validation; default: the newest"
    parser.add_argument("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    parser.add_argument(
        "--config", metavar="FILE", help="the run's config file; needed where it defines classes of its own"
    )
    parser.add_argument(
        "--slices", metavar="recall", help="measures associative recall instead; see --slices recall --help"
    )
    parser.add_argument("--tasks", metavar="NAME", nargs="+", help="runs recall and lm_eval tasks; see --tasks --help")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also writes config and metrics there, as JSON")
    return parser
