"""`jaxzoo linearize --run RUN --out RUN`: replaces attention by a mixer with a state of fixed size."""

import dataclasses
import functools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxzoo.cli.flags import StoredRunOptions, UsageError, flag, output_file, override
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.cli.user_files import import_files
from jaxzoo.config.checked import NonNegativeFloat, NonNegativeInt, PositiveInt
from jaxzoo.config.config_io import Json, to_json
from jaxzoo.config.json_files import read_json
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.screen import Failure, Screen
from jaxzoo.utils.whole_files import write_json

if TYPE_CHECKING:
    from jaxzoo.train.config import RunConfig

TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj")
"""Projections that have adapters, with --finetune.lora-rank."""
FIELDS = ("--data", "--optimizer", "--train")
"""Parts of the run's config whose fields are flags."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearizeCommand(StoredRunOptions):
    """Replaces the softmax attention of a trained model by a mixer with a state of fixed size, in the stages of LoLCATs
    (arXiv 2410.10254). Transfer: the new mixers copy the projections and learn the outputs of attention, from its
    inputs, layer by layer; OUT-transfer is the resulting run. Finetuning: ordinary training from there, of all
    parameters or of low-rank adapters; OUT is the resulting run, with --finetune.tokens 0 that of the transfer.
    Fields of the data, the optimizer and the training of the run can be overridden by their dotted names, such as
    --data.path DIR or --train.batch-size 8. Prints loss, recall on text, state and decode speed at each stage."""

    run: Annotated[Path, flag("RUN")]
    """Directory of the run, or a local folder in the format of the Hugging Face hub; nothing is written there."""
    out: Annotated[Path, flag("RUN")]
    """Directory of the new run."""
    mixer: Literal["based", "hedgehog", "gated-delta-net"] = "based"
    """Taylor attention after a window, Hedgehog's learned softmax features, or Gated DeltaNet."""
    keep: Annotated[tuple[int, ...], flag("LAYER")] = ()
    """Layers that keep their attention."""
    window: Annotated[NonNegativeInt | None, flag("N")] = None
    """Recent tokens that keep softmax attention; default: 64 for based, 0 for hedgehog."""
    feature_dim: Annotated[PositiveInt | None, flag("N")] = None
    """Columns of the learned map of queries and keys; default: 16 for based, a head's width for hedgehog."""
    transfer_tokens: Annotated[int, flag("N", "transfer.tokens")] = 20_000_000
    """Tokens of the transfer; 0: none."""
    transfer_learning_rate: Annotated[float, flag("N", "transfer.learning-rate")] = 1e-3
    """Learning rate of the transfer."""
    finetune_tokens: Annotated[NonNegativeInt, flag("N", "finetune.tokens")] = 20_000_000
    """Tokens of the finetuning; 0: none."""
    finetune_learning_rate: Annotated[NonNegativeFloat, flag("N", "finetune.learning-rate")] = 1e-4
    """Learning rate of the finetuning."""
    finetune_lora_rank: Annotated[NonNegativeInt, flag("N", "finetune.lora-rank")] = 0
    """Rank of adapters of q_proj, k_proj, v_proj, out_proj; 0: all parameters learn."""
    save: Annotated[Path | None, flag("FILE")] = None
    """Write the printed measurements there as JSON."""
    resume: bool = False
    """Continue: a complete transfer is kept, an incomplete one begins again, finetuning continues."""

    def __post_init__(self) -> None:
        if self.mixer == "gated-delta-net" and (self.window is not None or self.feature_dim is not None):
            raise UsageError("--window and --feature-dim belong to the mixers based and hedgehog")


@command_line(selector="run", out_of_memory="out of memory; try a smaller --train.batch-size")
def main(command: LinearizeCommand, flags: Sequence[str]) -> None:
    if wrong := next((f for f in flags if f.startswith("--") and f.split(".")[0] not in FIELDS), None):
        raise UsageError(f"unknown option {wrong}; fields of data, optimizer and train can be changed; see --help")
    out = command.out.expanduser().absolute()
    save = command.save and output_file("--save", command.save)
    import_files(command.config)

    from jaxzoo.linearization.conversion import attention_layers, converted_config
    from jaxzoo.linearization.measure import measure, report, table
    from jaxzoo.linearization.transfer import TransferConfig
    from jaxzoo.loading import load
    from jaxzoo.models.blueprint import split_variables
    from jaxzoo.parallel.sharding import make_mesh
    from jaxzoo.train.checks import check_batch_size
    from jaxzoo.utils.checksums import variables_digest

    settings = TransferConfig(tokens=command.transfer_tokens, learning_rate=command.transfer_learning_rate)
    last = RunDirectory(out)
    first = RunDirectory(_beside(out, "transfer")) if command.finetune_tokens else last
    for directory in {first.path: first, last.path: last}.values():
        directory.check(resume=False, overwrite=command.resume)
    prepare_jax()
    source = _as_run(command.run.expanduser().absolute(), out)
    teacher = load(source, command.checkpoint)
    config = override(teacher.config, flags, prog="jaxzoo linearize")
    layers = attention_layers(config.model, command.keep)
    sizes = {"window": command.window, "feature_dim": command.feature_dim}
    model = converted_config(config.model, layers, command.mixer, **sizes)
    config = dataclasses.replace(config, model=model)
    if command.finetune_tokens:
        check_batch_size(config, make_mesh(config.mesh))  # before the transfer, which may take hours
    note: dict[str, Json] = {
        "run": str(source),
        "step": teacher.step,
        "variables": variables_digest(split_variables(teacher.model)),
        "layers": layers,
        "seed": config.train.seed,
        "transfer": to_json(settings),
        "data": to_json(config.data),
        "batch_size": config.train.batch_size,
    }
    if not _is_done(first, config, note):
        _transfer(teacher, config, layers, settings, first, note)
    stages: dict[str, Path] = {"before": source, "transfer": first.path}
    if command.finetune_tokens:
        _finetune(config, command, last, first)
        stages["finetuning"] = last.path
    data = config.data.build(batch_size=config.train.batch_size, valid_batch_size=config.train.valid_batch_size)
    models = {name: teacher if name == "before" else load(path) for name, path in stages.items()}
    measured = measure(models, data)
    print(table(measured))
    if save is not None:
        write_json(save, report(measured))
    say(f"{last.path}: {command.mixer} in layers {', '.join(map(str, layers))}")


def _as_run(place: Path, out: Path) -> Path:
    """Returns the run in a place; imports a folder of another library next to the output first."""
    from jaxzoo.interop.runs import find_source, import_folder

    place = find_source(place)
    config = place / "config.json"
    is_folder = config.is_file() and "model_type" in read_json(config, dict)
    if not is_folder and place.suffix != ".gguf":
        return place
    run = RunDirectory(_beside(out, "source"))
    if not run.newest_checkpoint.exists():
        import_folder(place, run)
    elif (folder := read_json(run.origin, dict).get("folder")) != str(place):
        raise ValueError(f"{run.path} holds the model of {folder}, not of {place}; remove it, or choose another --out")
    return run.path


def _is_done(run: RunDirectory, config: "RunConfig", note: dict[str, Json]) -> bool:
    """Whether a run holds a complete transfer. Raises `ValueError` if its settings differ."""
    from jaxzoo.loading.trained import load_variables, read_run

    if not run.holds_run:
        return False
    try:
        found = read_json(run.origin, dict)
        (there, stored) = read_run(run.path)
        load_variables(there, stored)
    except (OSError, ValueError):
        say(f"{run.path} is not complete; the transfer begins again")
        return False
    if stored.model != config.model or any(found.get(key, value) != value for key, value in note.items()):
        raise ValueError(f"--resume: {run.path} is of another model, or of other settings; choose another --out")
    say(f"{run.path}: the transfer is complete")
    return True


def _transfer(
    teacher: Any,
    config: "RunConfig",
    layers: Sequence[int],
    settings: Any,
    run: RunDirectory,
    note: dict[str, Json],
) -> None:
    """Stage 1: transfers the outputs of attention and writes the run."""
    from jaxzoo.linearization.conversion import convert
    from jaxzoo.linearization.transfer import transfer
    from jaxzoo.loading.importing import create_imported
    from jaxzoo.models.blueprint import split_variables
    from jaxzoo.train.checks import check_data

    old = teacher.config.model, split_variables(teacher.model)
    new = convert(*old, config.model, seed=config.train.seed)
    say(f"layers {', '.join(map(str, layers))}: {len(new.copied)} variables copied, {len(new.new)} new:")
    say(" ".join(sorted({name.split(".", 2)[2] for name in new.new})) or "none")
    variables = new.variables
    if settings.tokens:
        data = config.data.build(batch_size=config.train.batch_size, valid_batch_size=1)
        check_data(config.model, vocab_size=data.vocab_size, max_length=data.max_length, packed=data.packed)
        with show_progress("steps") as show:

            def report(step: int, steps: int, errors: Sequence[float]) -> None:
                show(f"transfer, error {sum(errors) / len(errors):.4f}", step, steps)

            done = transfer(old, (config.model, variables), layers, data.train(), settings, report=report)
        for layer, before, after in zip(layers, done.first_errors, done.last_errors, strict=True):
            say(f"layer {layer}: relative squared error {before:.4f} -> {after:.4f}")
        variables = done.variables
    fingerprint = "" if teacher.tokenizer is None else teacher.tokenizer.fingerprint
    tokenizer = RunDirectory(Path(str(note["run"]))).tokenizer
    copy = functools.partial(shutil.copytree, tokenizer, run.tokenizer, dirs_exist_ok=True)
    create_imported(run, to_json(config), variables, note, fingerprint, copy if tokenizer.is_dir() else None)


def _finetune(config: "RunConfig", command: LinearizeCommand, run: RunDirectory, first: RunDirectory) -> None:
    """Stage 2: finetunes with the trainer. Raises `Failure` if it was stopped before its last step."""
    from jaxzoo.fitting import fit
    from jaxzoo.loading.origin import CheckpointPlace
    from jaxzoo.train.checkpoint import folders

    shape = config.data.abstract_batch(config.train.batch_size).tokens
    steps = max(1, round(command.finetune_tokens / shape.size))
    optimizer = dataclasses.replace(config.optimizer, learning_rate=command.finetune_learning_rate)
    rank = command.finetune_lora_rank
    train = dataclasses.replace(config.train, steps=steps, lora_rank=rank, lora_targets=TARGETS if rank else ())
    config = dataclasses.replace(config, optimizer=optimizer, train=train)
    resume = bool(folders(run.checkpoints))  # the record of a save precedes its name
    origin = None if resume else CheckpointPlace(first.path, None)
    options = {"resume": resume, "overwrite": not resume, "init_from": origin}
    found = fit(config, run.path, name="finetuning", screen=Screen(sys.stdout), **options)
    if found.step < steps:
        raise Failure(f"stopped at step {found.step} of the finetuning; the same command and --resume continue it")


def _beside(out: Path, end: str) -> Path:
    return out.with_name(f"{out.name}-{end}")
