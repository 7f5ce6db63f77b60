"""Trained models of run directories: the variables of a checkpoint, without its optimizer; nothing is written."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import SingleDeviceSharding

from jaxzoo.config.checked import nearest_path
from jaxzoo.config.config_io import UnknownTypeError, first_difference, from_json
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.models.adapters import adapt, merge, stored_lora, with_adapters
from jaxzoo.models.blueprint import Blueprint, Shapes, Variables, make_blueprint, names_of
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.checkpoint import CheckpointManifest, UnusableError, folders, newest_usable, read_arrays, read_seal
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.export import EXTENSION, ExportedFile, read_header, read_portable
from jaxzoo.train.memory import check_model
from jaxzoo.train.metrics import best_steps, read_rows
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.host_memory import give_back_large_blocks

Which = int | Literal["best"] | None
"""Checkpoint of a run: a step; "best", with the best validation by the run's `train.best_metric`; None: the newest.
If the best or newest one cannot be used, the next is taken, with a warning."""


def find_run(place: Path, option: str = "") -> RunDirectory:
    """Returns the run in a directory, or an exported model's file as a run; errors name the `option`.

    Raises `ValueError` if there is none, or a symbolic link in place of one of its files.
    """
    run = RunDirectory(place.absolute())
    if place.suffix == EXTENSION and not place.is_dir():
        return ExportedFile(run.path)
    takes = f"{option} takes" if option else "it must be"
    takes += " the directory of a run, such as runs/mqar-based"
    if not run.path.is_dir():
        raise ValueError(f"{run.path} does not exist; {takes}{nearest_path(run.path)}")
    if not run.holds_run:
        raise ValueError(f"{run.path} holds no run: {run.config.name} is missing; {takes}")
    run.check_links()
    return run


def read_run(place: Path) -> tuple[RunDirectory, RunConfig]:
    """Returns a run and the config of its model, in which adapters are merged.

    Raises `ValueError` if there is no run, its config.json is damaged, or a class of it is not imported.
    """
    run = find_run(place)
    config = read_experiment(run.read_config(), run.config)
    return run, dataclasses.replace(config, train=dataclasses.replace(config.train, lora_rank=0, lora_targets=()))


def read_experiment(config: Any, source: Path) -> RunConfig:
    """Reads a stored config.

    Raises `ValueError`, with the source: it is no config, a class of it is not imported, or its model is too large.
    """
    try:
        experiment = from_json(config, RunConfig)
        check_model(experiment.model)
    except UnknownTypeError as error:
        raise ValueError(f"{source}: {error}; name the file that defines it with --config FILE") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return experiment


def load_variables(
    run: RunDirectory, config: RunConfig, step: Which = None, *, device: Any = None
) -> tuple[Blueprint, Variables, CheckpointManifest]:
    """Returns the model of a run, its variables on one device, and the manifest of its checkpoint.

    Args:
      device: default: the first one.

    Raises:
      ValueError: no such checkpoint, or one of another model than the config.
      OSError: a file cannot be read, or its checksum differs.
    """
    blueprint = make_blueprint(config.model)
    give_back_large_blocks(4 * blueprint.n_params)
    file = run.config.name
    abstract = Variables(*on_device(blueprint.shapes, device or jax.devices()[0]))
    remedy = f"restore the run's own {file}"
    variables, seal = read_merged(run, step, config.model, abstract, str(run.path), f"by {file}; {remedy}")
    difference = first_difference(seal.config.get("model"), run.read_config().get("model"), path="model")
    if difference:
        raise ValueError(f"{run.path}: checkpoint {seal.step} is of another model: {difference[0]} differs; {remedy}")
    return blueprint, variables, seal


def read_merged(
    run: RunDirectory, step: Which, model: LanguageModelConfig, abstract: Variables, where: str, end: str
) -> tuple[Variables, CheckpointManifest]:
    """Returns the variables of a run's model, with its adapters merged, and the manifest of the checkpoint.

    Args as in `read_stored`, and `model` without adapters, whose variables are `abstract`.
    """
    lora = stored_lora(run.read_config())
    if lora is None:
        return read_stored(run, step, abstract, where, end)
    shaped = with_adapters(adapt(make_blueprint(model), lora), abstract)
    variables, seal = read_stored(run, step, shaped, where, end)
    adapted = adapt(make_blueprint(model), stored_lora(seal.config) or lora)  # the shapes do not tell the scale
    return merge(adapted, variables), seal


def on_device(shapes: Any, device: Any) -> Any:
    """Shapes and dtypes of arrays, with a device as their sharding."""
    place = SingleDeviceSharding(device)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)


def read_stored(
    run: RunDirectory, step: Which, abstract: Variables, where: str, end: str
) -> tuple[Variables, CheckpointManifest]:
    """Reads variables and manifest of a checkpoint, or of an exported model, verified by digests.

    Args:
      abstract: shapes, dtypes and shardings to read into; any mesh will do.
      where, end: beginning and end of the error for a checkpoint of another model, as in `require_shapes`.

    Raises:
      ValueError: there is no (such) checkpoint, or it is of another model; no variable was read.
      OSError: a file cannot be read, or holds other numbers than were saved.
    """

    def check(seal: CheckpointManifest) -> None:
        require_shapes(seal.shapes, abstract, f"{where}: checkpoint {seal.step} is of another model", end)

    def read(folder: Path) -> tuple[Variables, CheckpointManifest]:
        seal = read_seal(folder)
        check(seal)
        return Variables(**read_arrays(folder, seal, abstract._asdict())), seal

    if run.model.is_file():
        seal, digest = read_header(run.model)
        if isinstance(step, int) and step != seal.step:
            raise ValueError(f"checkpoint {step} must be {seal.step}, the only one in {run.path}")
        check(seal)
        return read_portable(run.model, digest, abstract), seal
    steps = list(folders(run.checkpoints))
    if isinstance(step, int) and steps and step not in steps:
        raise ValueError(f"checkpoint {step} must be one of {', '.join(map(str, sorted(steps)))}, those in {run.path}")
    try:
        if isinstance(step, int) and steps:
            return read(run.checkpoints / str(step))
        order = _best(run, steps) if step == "best" else None
        found = newest_usable(run.checkpoints, read, run.newest_checkpoint if order is None else None, order)
    except UnusableError as error:
        what = f"checkpoint {step} cannot be used: " if isinstance(step, int) else ""
        raise OSError(f"{run.path}: {what}{error}") from None
    if found is None:
        raise ValueError(f"{run.path} holds a run without checkpoint; train it until it has saved one")
    return found


def shapes_of(variables: Variables) -> Shapes:
    return {name: x.shape for tree in variables for name, x in names_of(tree).items()}


def require_shapes(there: Shapes, here: Variables, where: str, end: str) -> None:
    """Raises `ValueError` for stored variables of another model, which Orbax would restore in part.

    The message is `where`, the first variable that differs, both shapes, and `end`.
    """
    shapes = shapes_of(here)
    for name in sorted(there.keys() | shapes.keys()):
        if there.get(name) != shapes.get(name):
            raise ValueError(f"{where}: variable {name} has shape {there.get(name)} there and {shapes.get(name)} {end}")


def _best(run: RunDirectory, found: list[int]) -> list[int]:
    """The checkpoints of validated steps, the best first."""
    settings = run.read_config().get("train")
    chosen = settings.get("best_metric") if isinstance(settings, dict) else None
    metric = chosen if isinstance(chosen, str) else TrainConfig.best_metric
    steps = best_steps(read_rows(run.metrics, whole=True), metric, among=found)
    if found and not steps:
        raise ValueError(
            f"{run.path}: {run.metrics.name} has {metric} for none of the checkpoints {', '.join(map(str, found))}; "
            "name one by its step"
        )
    return steps


def stored_tokenizer(run: RunDirectory, config: RunConfig) -> Tokenizer | None:
    """Returns the tokenizer of a run's text, from the run's directory if it has one; None: no text.

    Raises `ValueError` if its file is missing or damaged.
    """
    if run.tokenizer.is_dir():
        return load_tokenizer(run.tokenizer, lossless=False)
    tokenizer = config.data.tokenizer()
    begin = getattr(config.data, "begin", None)
    if tokenizer is not None and begin is not None:
        tokenizer.begin = (begin,)
    return tokenizer


def text_tokenizer(run: RunDirectory, config: RunConfig, given: Tokenizer | None) -> Tokenizer:
    """Returns the tokenizer of a run on text: the given one, or its own.

    Raises `ValueError` if there is none, or its ids do not fit the model.
    """
    try:
        tokenizer = given or stored_tokenizer(run, config)
    except ValueError as error:
        raise ValueError(f"{run.path}: {error}; or name the run's tokenizer with --tokenizer PLACE") from error
    if tokenizer is None:
        name = type(config.data).__name__
        raise ValueError(f"{run.path}: its data, {name}, have no tokenizer; generate from a run on text")
    if config.model.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"{run.path}: LanguageModelConfig.vocab_size={config.model.vocab_size} must be at least the "
            f"{tokenizer.vocab_size} ids of the tokenizer {tokenizer.name!r}; this model was not trained on its tokens"
        )
    return tokenizer


def check_tokens(run: RunDirectory, seal: CheckpointManifest, tokenizer: Tokenizer, *, is_given: bool) -> None:
    """Raises `ValueError` where a checkpoint was trained on tokens of another tokenizer."""
    made_by = str(seal.cursor.get("fingerprint"))
    is_unknown = run.is_imported and "fingerprint" not in seal.cursor  # of a folder without a tokenizer
    if not (is_unknown and is_given) and not made_by.startswith(f"{tokenizer.fingerprint}:"):
        raise ValueError(
            f"{run.path}: checkpoint {seal.step} was trained on tokens of {made_by!r}, and this tokenizer is "
            f"{tokenizer.fingerprint!r}; name the one that made them with --tokenizer PLACE"
        )
