"""The language model of a run directory, without its optimizer; nothing is written there."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import SingleDeviceSharding

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import UnknownTypeError, first_difference, from_json
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.memory import check_model
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.seal import Seal
from jaxzoo.train.stored import Which, find_run, first_other_shape, read_stored, shapes_of


class Trained(NamedTuple):
    """A trained language model."""

    model: LanguageModel
    """The model, on the first device."""
    tokenizer: Tokenizer
    """Tokenizer of its data."""
    step: int
    """Step of the checkpoint."""


def load_trained(directory: Path, step: Which = None, *, tokenizer: Tokenizer | None = None) -> Trained:
    """Reads the model of a run on text, whatever mesh it was trained on.

    Only checkpoints that are complete are seen: Orbax gives one its name when it is. The run may be going on.

    Args:
      directory: the run's.
      step: which checkpoint.
      tokenizer: the one of its tokens; None: the one that its config names.

    Raises:
      ValueError: there is no run, no (such) checkpoint, no text, no tokenizer or another one; the checkpoint is of
        another model than config.json; or config.json names a class that has not been imported.
      OSError: a file cannot be read, or holds other numbers than were saved.
    """
    run, config = read_run(directory)
    tokenizer = _tokenizer_of(config, run, tokenizer)
    blueprint, variables, seal = load_variables(run, config, step)
    made_by = str(seal.cursor.get("fingerprint"))
    if not made_by.startswith(f"{tokenizer.fingerprint}:"):
        raise ValueError(
            f"{directory}: checkpoint {seal.step} was trained on tokens of {made_by!r}, and this tokenizer is "
            f"{tokenizer.fingerprint!r}; name the one that made them with --tokenizer PLACE"
        )
    return Trained(blueprint.model(variables), tokenizer, seal.step)


def load_variables(
    run: RunDirectory, config: ExperimentConfig, step: Which = None, *, device: Any = None
) -> tuple[Blueprint, Variables, Seal]:
    """The model of a run, what it holds, on one device, and the seal of its checkpoint.

    Args:
      run: its directory.
      config: that of the run.
      step: as `load_trained` takes it, which tells what is raised.
      device: where to; None: the first.
    """
    try:
        check_model(config.model)
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from error
    blueprint = make_blueprint(config.model)
    place = SingleDeviceSharding(device or jax.devices()[0])
    abstract: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), blueprint.shapes)
    variables, seal = read_stored(run, step, abstract, lambda seal: _check_same_model(seal, blueprint, run))
    return blueprint, variables, seal


def read_run(directory: Path) -> tuple[RunDirectory, ExperimentConfig]:
    """A run and its config.

    Raises:
      ValueError: there is no run, or its config.json names a class that has not been imported.
    """
    run = find_run(directory)
    stored = run.read_config()
    try:
        return run, from_json(stored, ExperimentConfig)
    except UnknownTypeError as error:
        raise ValueError(f"{run.config}: {error}; name the file that defines it with --config FILE") from error
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from error


def _tokenizer_of(config: ExperimentConfig, run: RunDirectory, given: Tokenizer | None) -> Tokenizer:
    try:
        tokenizer = given or config.data.tokenizer()
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


def _check_same_model(seal: Seal, blueprint: Blueprint, run: RunDirectory) -> None:
    """Refuses the checkpoint of another model than that of config.json."""
    where = f"{run.path}: checkpoint {seal.step}"
    other = first_other_shape(shapes_of(seal), blueprint.shapes)
    if other:
        name, there, here = other
        raise ValueError(
            f"{where} is of another model: variable {name} has shape {there} there and {here} by config.json; restore "
            "the run's own config.json"
        )
    difference = first_difference(seal.config["model"], run.read_config()["model"], path="model")
    if difference:
        raise ValueError(f"{where} is of another model: {difference[0]} differs; restore the run's own config.json")
