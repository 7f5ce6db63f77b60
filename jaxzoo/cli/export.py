"""`jaxzoo export --run DIR --out PLACE`: writes a model as one file or a folder, or reads such a file."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxzoo.cli.flags import StoredRunOptions, UsageError, flag, output_file
from jaxzoo.cli.runner import command_line, say
from jaxzoo.cli.user_files import import_files
from jaxzoo.utils.whole_files import write_whole

EXTENSION = ".safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportCommand(StoredRunOptions):
    """Writes the parameters and buffers of a run's checkpoint to a safetensors file, bit for bit, with the names of the
    variables, the config, the step, the tokenizer's fingerprint and a digest. LoRA adapters are merged. An --out
    without .safetensors becomes a folder with this file, config, metrics and tokenizer, which other commands take as
    --run. --dtype bfloat16 halves the size of matrices, which are read back as float32. --import makes a run directory
    from such a file, for jaxzoo evaluate, generate and, by --init-from, train."""

    run: Annotated[Path | None, flag("DIR")] = None
    """Directory of the run; nothing is written there."""
    adapters: bool = False
    """Write only the LoRA adapters; default: the merged model."""
    file: Annotated[Path | None, flag("FILE", "import")] = None
    """Make a run from this file."""
    out: Annotated[Path | None, flag("PLACE")] = None
    """The .safetensors file, or a folder; with --import the directory of the run."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of matrices; norms, biases and decays stay float32."""

    def __post_init__(self) -> None:
        if (self.run is None) == (self.file is None):
            choices = f"--run DIR, to write a {EXTENSION} file, or --import FILE, to read one"
            raise UsageError(f"give either {choices}; see --help")
        if self.out is None:
            place = "the file to write, or with --import the directory of the run"
            raise UsageError(f"--out is required: {place}; see --help")
        if self.file is not None and self.checkpoint is not None:
            raise UsageError("--checkpoint belongs to --run: a file holds one model")


@command_line()
def main(command: ExportCommand) -> None:
    assert command.out
    out = command.out.expanduser()
    import_files(command.config)
    if command.file is not None:
        from jaxzoo.loading.importing import import_run
        from jaxzoo.train.run_dir import RunDirectory

        manifest = import_run(command.file.expanduser(), RunDirectory(out.absolute()))
        arrays = f"the {len(manifest.digests)} arrays of {command.file}, trained for {manifest.step} steps"
        say(f"{out.absolute()}: a run with {arrays}")
        return
    if out.suffix != EXTENSION and (out.suffix or command.adapters):
        raise UsageError(f"--out {out} must end in {EXTENSION}, or, without --adapters, be the name of a folder")
    if out.exists():
        raise UsageError(f"--out {out} exists; remove it, or choose another name")
    output_file("--out", out)
    assert command.run
    run = command.run.expanduser()
    if command.adapters:
        from jaxzoo.loading.adapter_files import write_adapters

        n, step = write_adapters(run, out, command.checkpoint)
        say(f"{out}: adapters of {n:,} parameters, checkpoint {step} of {command.run}")
    else:
        _write_model(command, run, out)


def _write_model(command: ExportCommand, directory: Path, out: Path) -> None:
    import jax

    from jaxzoo.config.config_io import to_json
    from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
    from jaxzoo.loading.trained import load_variables, read_run, stored_tokenizer
    from jaxzoo.train.export import rounded, write_portable
    from jaxzoo.train.run_dir import RunDirectory

    run, config = read_run(directory)
    blueprint, variables, manifest = load_variables(run, config, command.checkpoint, device=jax.devices("cpu")[0])
    if command.dtype == "bfloat16":
        variables = rounded(variables, blueprint.traits)
    if out.suffix == EXTENSION:
        write_portable(out, variables, manifest)
    else:
        folder = RunDirectory(out)
        tokenizer = stored_tokenizer(run, config)
        out.mkdir()
        write_portable(folder.model, variables, manifest)
        if tokenizer is not None:
            save_tokenizer(tokenizer, folder.tokenizer)
        if run.metrics.exists():
            write_whole(folder.metrics, run.metrics.read_text())
        folder.write_config(to_json(config))
    n_arrays = len(jax.tree.leaves(variables))
    say(f"{out}: {blueprint.n_params:,} parameters in {n_arrays} arrays, checkpoint {manifest.step} of {run.path}")
