"""`jaxzoo compare RUN RUN ...`: scores several models on the same data."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxzoo.cli.flags import PICTURES, Repeated, UsageError, flag, output_file, override
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.cli.user_files import import_files
from jaxzoo.utils.progress import show_progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Scores trained models on the validation sets of the first one: loss with standard errors of paired differences,
    accuracy or bits per byte, parameters, bytes of the state, tokens/s. Fields of the first run's data and training can
    be overridden by their dotted names, such as --data.path DIR or --train.valid-batch-size 16, for all models. Nothing
    is written to the runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, flag("RUN")] = ()
    """Directories of runs, or .safetensors files."""
    config: Annotated[Repeated, flag("FILE")] = ()
    """Config file that defines classes of a run."""
    out: Annotated[Path | None, flag("FILE")] = None
    """Write the numbers to this file, as JSON."""
    picture: Annotated[Path | None, flag("FILE")] = None
    """Draw the numbers to this file (.png, .svg, .pdf)."""


@command_line(selector="runs", out_of_memory="out of memory; try a smaller --train.valid-batch-size")
def main(command: CompareCommand, flags: Sequence[str]) -> None:
    places = [place.expanduser() for place in command.runs]
    if len(places) < 2 or len(set(places)) < len(places):
        raise UsageError("give two different runs or more, such as runs/mqar-based runs/mqar-attention; see --help")
    out = command.out and output_file("--out", command.out)
    picture = command.picture and output_file("--picture", command.picture, endings=PICTURES)
    if wrong := next((f for f in flags if f.startswith("-") and not f.startswith(("--data.", "--train."))), None):
        raise UsageError(f"unknown option {wrong}; fields of the data and of the training can be changed, no others")
    import_files(command.config)

    from jaxzoo.cli.evaluate_common import write_results
    from jaxzoo.evals.compare import compare, draw, table
    from jaxzoo.evals.validation import progress_note
    from jaxzoo.loading import load

    prepare_jax()
    models = {str(place): load(place) for place in places}
    first = next(iter(models.values())).config
    config = override(first, flags, prog="jaxzoo compare")
    data = config.data.build(batch_size=config.train.batch_size, valid_batch_size=config.train.valid_batch_size)
    with show_progress("batches") as report:
        scored = compare(models, data, report)
    if picture is not None:
        draw(scored, picture)
        say(f"written to {picture}")
    notes = [f"{name}: {progress_note(each.step, each.config.train)}" for name, each in models.items()]
    notes += [f"guessing: {name} {line:.4f}" for name, line in config.data.guessing_lines().items()][:1]
    write_results(
        "\n".join([table(scored), "", *notes]), out, [{**s._asdict(), "step": models[s.name].step} for s in scored]
    )
