"""`python -m jaxzoo.inspect --run DIR --example 3`: what a trained model does with one example, as a picture."""

import dataclasses
from pathlib import Path

from jaxzoo.cli.flags import PICTURES, UsageError, output_file, which_checkpoint
from jaxzoo.cli.runner import Main, make_main, prepare_jax, say
from jaxzoo.cli.user_files import import_file

MOST_TOKENS = 512
"""Longest example: maps have t x t entries, and an influence takes t d backward passes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """Draws which tokens each output of a trained model depends on, layer by layer, with the norms of its states, and
    prints for every query the target, the answer and where the last layer looks. Attention, linear attention and delta
    rules show their scores (the equivalent t x t matrix), all other mixers the norm of the derivative. Nothing is
    written but --out."""

    run: Path
    """Directory of the run, or a folder or .safetensors file of python -m jaxzoo.export."""
    example: int | None = None
    """Row of the run's first validation set. Default: 0, without a prompt."""
    prompt: str = ""
    """Text to draw instead of an example, for a run on text."""
    checkpoint: str = ""
    """Step of the checkpoint, or best. Default: the newest."""
    config: Path | None = None
    """The run's config file; needed where it defines classes of its own."""
    out: Path = Path("inspect.png")
    """The picture: .png, .svg or .pdf; an existing file is replaced."""


def _inspect(command: InspectCommand) -> None:
    out = output_file("--out", command.out, endings=PICTURES)
    if command.prompt and command.example is not None:
        raise UsageError("--prompt and --example are two inputs; give one of them")
    if command.config is not None:
        import_file(command.config)

    import numpy as np

    from jaxzoo.inspection.picture import draw, look, table
    from jaxzoo.loading import load

    prepare_jax()
    loaded = load(command.run, which_checkpoint(command.checkpoint) if command.checkpoint else None)
    batch = loaded.prompted(command.prompt) if command.prompt else loaded.example(command.example or 0)
    length = batch.tokens.shape[1]
    if length > MOST_TOKENS:
        raise UsageError(
            f"the example has {length} tokens and must have at most {MOST_TOKENS}; give a shorter --prompt"
        )
    labels = (
        None
        if loaded.tokenizer is None
        else [repr(loaded.tokenizer.decode(np.asarray(batch.tokens[:1, i])))[1:-1] for i in range(length)]
    )
    seen = look(loaded.model, batch)
    what = "prompt" if command.prompt else f"example {command.example or 0}"
    draw(seen, out, title=f"{command.run}, step {loaded.step}, {what}", labels=labels)
    print(table(seen, labels))
    say(f"written to {out}")


main: Main = make_main(InspectCommand, _inspect, out_of_memory="out of memory; take a shorter example")
