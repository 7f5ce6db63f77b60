"""The language model of a run directory, without its optimizer; nothing is written there."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import UnknownTypeError, first_difference, from_json
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.digest import digests
from jaxzoo.train.memory import check_model
from jaxzoo.train.restore import folders, newest_usable
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.seal import Seal, UnusableError, read_seal
from jaxzoo.train.storage import reading


class Trained(NamedTuple):
    """What a run has learned."""

    model: LanguageModel
    """The model, on the first device."""
    tokenizer: Tokenizer
    """What made its tokens."""
    step: int
    """Step of the checkpoint."""


def load_trained(directory: Path, step: int | None = None, *, tokenizer: Tokenizer | None = None) -> Trained:
    """Reads the model of a run on text, whatever mesh it was trained on.

    Only checkpoints that are complete are seen: Orbax gives one its name when it is. The run may be going on.

    Args:
      directory: the run's.
      step: that of the checkpoint; None: the newest that can be used, with a warning for each that is newer.
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
    run: RunDirectory, config: ExperimentConfig, step: int | None = None
) -> tuple[Blueprint, Variables, Seal]:
    """The model of a run, what it holds, on the first device, and the seal of its checkpoint.

    Args:
      run: its directory.
      config: that of the run.
      step: as `load_trained` takes it, which tells what is raised.
    """
    try:
        check_model(config.model)
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from error
    blueprint = make_blueprint(config.model)

    def read(folder: Path) -> tuple[Variables, Seal]:
        return _read(folder, blueprint, run)

    try:
        found = (
            newest_usable(run.checkpoints, read, run.newest_checkpoint) if step is None else read(_folder(run, step))
        )
    except UnusableError as error:
        what = "" if step is None else f"checkpoint {step} cannot be used: "
        raise OSError(f"{run.path}: {what}{error}") from None
    if found is None:
        raise ValueError(_NO_CHECKPOINT.format(run.path))
    return blueprint, *found


def read_run(directory: Path) -> tuple[RunDirectory, ExperimentConfig]:
    """A run and its config.

    Raises:
      ValueError: there is no run, or its config.json names a class that has not been imported.
    """
    run = RunDirectory(directory.absolute())
    if not run.path.is_dir():
        raise ValueError(f"{run.path} does not exist; --run takes the directory of a run, such as runs/lm-based_tiny")
    if not run.holds_run:
        raise ValueError(f"{run.path} holds no run: {run.config.name} is missing; --run takes the directory of a run")
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


_NO_CHECKPOINT = "{} holds a run without checkpoint; train it until it has saved one"


def _folder(run: RunDirectory, step: int) -> Path:
    found = folders(run.checkpoints)
    if not found:
        raise ValueError(_NO_CHECKPOINT.format(run.path))
    if step not in found:
        raise ValueError(f"checkpoint {step} must be one of {', '.join(map(str, sorted(found)))}, those in {run.path}")
    return found[step]


def _read(folder: Path, blueprint: Blueprint, run: RunDirectory) -> tuple[Variables, Seal]:
    """Variables and seal of a checkpoint of the model of config.json, and of no other."""
    seal = read_seal(folder)
    where = f"{run.path}: checkpoint {seal.step}"
    _check_same_model(seal, blueprint, where)
    model = json.loads(run.config.read_text())["model"]
    difference = first_difference(seal.config["model"], model, path="model")
    if difference:
        raise ValueError(f"{where} is of another model: {difference[0]} differs; restore the run's own config.json")
    with reading(folder, seal):
        variables = _restore(folder / "state", blueprint)
    seal.check_digests(digests({name: tree for name, tree in variables._asdict().items() if tree}))
    return variables, seal


def _check_same_model(seal: Seal, blueprint: Blueprint, where: str) -> None:
    """Compares names and shapes: Orbax restores what it finds, and leaves out what it does not."""
    parts = {name: array for name, array in seal.digests.items() if name.split("/")[0] in Variables._fields}
    found = {name.partition("/")[2]: tuple(array["shape"]) for name, array in parts.items()}
    leaves = [leaf for tree in blueprint.shapes for leaf in jax.tree.leaves_with_path(tree)]
    expected = {jax.tree_util.keystr(path, simple=True, separator="/"): x.shape for path, x in leaves}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"{where} is of another model: variable {name} has shape {found.get(name)} there and "
                f"{expected.get(name)} by config.json; restore the run's own config.json"
            )


def _restore(state: Any, blueprint: Blueprint) -> Variables:
    """The variables of a stored train state, and nothing else of it."""
    device = SingleDeviceSharding(jax.devices()[0])
    item = {
        name: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)
        for name, tree in blueprint.shapes._asdict().items()
        if tree
    }
    only_variables: Any = ocp.args.PyTreeRestore(
        item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
    )
    restored = ocp.PyTreeCheckpointHandler().restore(state, args=only_variables)
    return Variables(restored["params"], restored.get("buffers") or {})
