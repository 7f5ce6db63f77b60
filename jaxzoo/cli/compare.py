"""`python -m jaxzoo.compare RUN RUN ...`: trained models on the same data."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxzoo.cli.flags import PICTURES, ArgumentParser, UsageError, output_file, override
from jaxzoo.cli.runner import Main, prepare_jax, run, say
from jaxzoo.cli.user_files import import_files

PROGRAM = "python -m jaxzoo.compare"
DESCRIPTION = """Scores trained models (directories of runs, or .safetensors files) on the validation sets of the first
one: loss with standard errors of paired differences, accuracy or bits per byte, parameters, bytes of the state,
tokens/s. Fields of the first run's data and training can be overridden by their dotted names, such as --data.path DIR
or --train.valid-batch-size 16, for all models. Nothing is written to the runs."""


def _compare(argv: Sequence[str]) -> None:
    first = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    places = [Path(word).expanduser() for word in argv[:first]]
    parser = ArgumentParser(prog=f"{PROGRAM} RUN RUN ...", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", action="append", help="config file that defines classes of a run")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the numbers to this file, as JSON")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="draw the numbers to this file (.png, .svg, .pdf)")
    options, flags = parser.parse_known_args(argv[first:])
    if len(places) < 2 or len(set(places)) < len(places):
        raise UsageError("give two different runs or more, such as runs/mqar-based runs/mqar-attention; see --help")
    out = options.out and output_file("--out", options.out)
    picture = options.picture and output_file("--picture", options.picture, endings=PICTURES)
    if wrong := next((f for f in flags if f.startswith("-") and not f.startswith(("--data.", "--train."))), None):
        raise UsageError(f"unknown option {wrong}; fields of the data and of the training can be changed, no others")
    import_files(options.config or [])

    from jaxzoo.cli.evaluate_common import write_results
    from jaxzoo.evals.compare import compare, draw, table
    from jaxzoo.loading import load

    prepare_jax()
    models = {str(place): load(place) for place in places}
    config = override(next(iter(models.values())).config, flags, prog=PROGRAM)
    sizes = {"batch_size": config.train.batch_size, "valid_batch_size": config.train.valid_batch_size}
    scored = compare(models, config.data.build(**sizes))
    if picture is not None:
        draw(scored, picture)
        say(f"written to {picture}")
    write_results(table(scored), out, [{**s._asdict(), "step": models[s.name].step} for s in scored])


main: Main = partial(run, _compare, out_of_memory="out of memory; try a smaller --train.valid-batch-size")
