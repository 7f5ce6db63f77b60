"""`jaxzoo inspect --run DIR --example 3`: draws which tokens a model depends on, in one example."""

import dataclasses
from pathlib import Path
from typing import Annotated

from jaxzoo.cli.flags import PICTURES, StoredRunOptions, UsageError, flag, output_file
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.cli.user_files import import_files

MOST_TOKENS = 512
"""Longest example: maps have t x t entries, and an influence takes t d backward passes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectCommand(StoredRunOptions):
    """Draws which tokens each output of a trained model depends on, layer by layer, with the norms of its states, and
    prints for every query the target, the answer and where the last layer looks. Attention, linear attention and delta
    rules show their scores (the equivalent t x t matrix), all other mixers the norm of the derivative. Only --out is
    written."""

    run: Path
    """Directory of the run, or a folder or .safetensors file of jaxzoo export."""
    example: Annotated[int | None, flag("N")] = None
    """Row of the run's first validation set. Default: 0, without a prompt."""
    prompt: str = ""
    """Text to draw instead of an example, for a run on text."""
    out: Path = Path("inspect.png")
    """The picture: .png, .svg or .pdf; an existing file is replaced."""


@command_line(out_of_memory="out of memory; take a shorter example")
def main(command: InspectCommand) -> None:
    out = output_file("--out", command.out, endings=PICTURES)
    if command.prompt and command.example is not None:
        raise UsageError("--prompt and --example are two inputs; give one of them")
    import_files(command.config)

    import numpy as np

    from jaxzoo.inspection.picture import draw, look, table
    from jaxzoo.loading import load

    prepare_jax()
    loaded = load(command.run, command.checkpoint)
    batch = loaded.prompted(command.prompt) if command.prompt else loaded.example(command.example or 0)
    length = batch.tokens.shape[1]
    if length > MOST_TOKENS:
        rule = f"must have at most {MOST_TOKENS}; give a shorter --prompt"
        raise UsageError(f"the example has {length} tokens and {rule}")
    labels = None
    if loaded.tokenizer is not None:
        tokens = np.asarray(batch.tokens[0])
        labels = [repr(loaded.tokenizer.decode(tokens[i : i + 1]))[1:-1] for i in range(length)]
    seen = look(loaded.model, batch)
    what = "prompt" if command.prompt else f"example {command.example or 0}"
    draw(seen, out, title=f"{command.run}, step {loaded.step}, {what}", labels=labels)
    print(table(seen, labels))
    say(f"written to {out}")
