"""`python -m jaxzoo.export --run DIR --out PLACE`: a trained model as one file or a small folder, and back."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.flags import ArgumentParser, UsageError, output_file, which_checkpoint
from jaxzoo.cli.runner import Main, run, say
from jaxzoo.cli.user_files import import_file
from jaxzoo.utils.whole_files import write_whole

if TYPE_CHECKING:
    from jaxzoo.loading.trained import Which

PROGRAM = "python -m jaxzoo.export"

EXTENSION = ".safetensors"

DESCRIPTION = """Writes the parameters and buffers of a run's checkpoint to a safetensors file, bit for bit, with the
names of the variables, the config, the step, the tokenizer's fingerprint and a digest. LoRA adapters are merged. An
--out without .safetensors becomes a folder with this file, config, metrics and tokenizer, which other commands take
as --run. --dtype bfloat16 halves the matrices, which are read back as float32.
--import makes a run directory from such a file, for python -m jaxzoo.evaluate, jaxzoo.generate and, by --init-from,
jaxzoo.train."""


def _export(argv: Sequence[str]) -> None:
    options = _options().parse_args(argv)
    if (options.run is None) == (options.file is None):
        raise UsageError(
            f"give either --run DIR, to write a {EXTENSION} file, or --import FILE, to read one; see --help"
        )
    if options.out is None:
        raise UsageError("--out is required: the file to write, or with --import the directory of the run; see --help")
    if options.config is not None:
        import_file(Path(options.config))
    out = Path(options.out).expanduser()
    if options.file is not None:
        if options.checkpoint is not None:
            raise UsageError("--checkpoint belongs to --run: a file holds one model")
        from jaxzoo.loading.importing import import_run
        from jaxzoo.train.run_dir import RunDirectory

        seal = import_run(Path(options.file).expanduser(), RunDirectory(out.absolute()))
        arrays = f"the {len(seal.digests)} arrays of {options.file}, trained for {seal.step} steps"
        say(f"{out.absolute()}: a run with {arrays}")
        return
    if out.suffix != EXTENSION and (out.suffix or options.adapters):
        raise UsageError(f"--out {out} must end in {EXTENSION}, or, without --adapters, be the name of a folder")
    if out.exists():
        raise UsageError(f"--out {out} exists; remove it, or choose another name")
    out = output_file("--out", out)
    if options.adapters:
        from jaxzoo.loading.adapter_files import write_adapters

        n, step = write_adapters(Path(options.run).expanduser(), out, options.checkpoint)
        say(f"{out}: adapters of {n:,} parameters, checkpoint {step} of {options.run}")
        return
    _write(Path(options.run).expanduser(), options.checkpoint, out, half=options.dtype == "bfloat16")


def _write(directory: Path, step: "Which", out: Path, *, half: bool) -> None:
    import jax

    from jaxzoo.config.config_io import to_json
    from jaxzoo.data.tokens.tokenizer_files import save_tokenizer
    from jaxzoo.loading.trained import load_variables, read_run, stored_tokenizer
    from jaxzoo.train.export import rounded, write_portable
    from jaxzoo.train.run_dir import RunDirectory

    run, config = read_run(directory)
    blueprint, variables, seal = load_variables(run, config, step, device=jax.devices("cpu")[0])
    variables = rounded(variables, blueprint.traits) if half else variables
    if out.suffix == EXTENSION:
        write_portable(out, variables, seal)
    else:
        folder, tokenizer = RunDirectory(out), stored_tokenizer(run, config)
        out.mkdir()
        write_portable(folder.model, variables, seal)
        if tokenizer is not None:
            save_tokenizer(tokenizer, folder.tokenizer)
        if run.metrics.exists():
            write_whole(folder.metrics, run.metrics.read_text())
        folder.write_config(to_json(config))
    n_arrays = len(jax.tree.leaves(variables))
    say(f"{out}: {blueprint.n_params:,} parameters in {n_arrays} arrays, checkpoint {seal.step} of {run.path}")


def _options() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("--run", metavar="DIR", help="directory of the run; nothing is written there")
    checkpoint = "step of the checkpoint, or best: that with the best validation; default: the newest"
    add("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    add("--adapters", action="store_true", help="write only the LoRA adapters; default: the merged model")
    add("--import", dest="file", metavar="FILE", help="make a run from this file")
    out = f"the {EXTENSION} file, or a folder; with --import the directory of the run"
    add("--out", metavar="PLACE", help=out)
    dtype = "of matrices (norms, biases and decays are always exact); default: float32, exact"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtype)
    add("--config", metavar="FILE", help="the run's config file; needed where it defines classes of its own")
    return parser


main: Main = partial(run, _export)
