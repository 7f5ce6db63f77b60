"""The language model of a run directory, without its optimizer; nothing is written there."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import UnknownTypeError, from_json
from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.run_dir import RunDirectory


class Trained(NamedTuple):
    """What a run has learned."""

    model: LanguageModel
    """The model, on the first device."""
    tokenizer: ByteTokenizer
    """What made its tokens."""
    step: int
    """Step of the checkpoint."""


def load_trained(directory: Path, step: int | None = None) -> Trained:
    """Reads the model of a run on text, whatever mesh it was trained on.

    Only checkpoints that are complete are seen: Orbax gives one its name when it is. The run may be going on.

    Args:
      directory: the run's.
      step: that of the checkpoint; None: the newest.

    Raises:
      ValueError: there is no run, no (such) checkpoint, no text, or another tokenizer; the checkpoint is of another
        model than config.json; or config.json names a class that has not been imported.
      OSError: a file cannot be read.
    """
    run = RunDirectory(directory.absolute())
    config = _read_config(run)
    tokenizer = _tokenizer_of(config, run)
    blueprint = make_blueprint(config.model)
    if not run.checkpoints.is_dir():
        raise ValueError(f"{directory} holds a run without checkpoint; train it until it has saved one")
    with ocp.CheckpointManager(
        run.checkpoints,
        options=ocp.CheckpointManagerOptions(read_only=True),
        item_handlers={"state": ocp.PyTreeCheckpointHandler(), "data": ocp.JsonCheckpointHandler()},
    ) as manager:
        step = _choose(manager, step, directory)
        with _reading(directory, step):
            metadata: Any = manager.item_metadata(step)
            stored = _variables(metadata["state"].tree)
        _check_same_model(stored, blueprint, f"{directory}: checkpoint {step}")
        with _reading(directory, step):
            variables, made_by = _restore(manager, step, blueprint)
    if not made_by.startswith(f"{tokenizer.fingerprint}:"):
        raise ValueError(
            f"{directory}: checkpoint {step} was trained on tokens of {made_by!r}, and this tokenizer is "
            f"{tokenizer.fingerprint!r}; use the version of jaxzoo that trained it"
        )
    return Trained(blueprint.model(variables), tokenizer, step)


def _read_config(run: RunDirectory) -> ExperimentConfig:
    if not run.path.is_dir():
        raise ValueError(f"{run.path} does not exist; --run takes the directory of a run, such as runs/lm-based_tiny")
    if not run.holds_run:
        raise ValueError(f"{run.path} holds no run: {run.config.name} is missing; --run takes the directory of a run")
    try:
        return from_json(json.loads(run.config.read_text()), ExperimentConfig)
    except UnknownTypeError as error:
        raise ValueError(f"{run.config}: {error}; name the file that defines it with --config FILE") from error
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from error


def _tokenizer_of(config: ExperimentConfig, run: RunDirectory) -> ByteTokenizer:
    tokenizer = config.data.tokenizer()
    if tokenizer is None:
        name = type(config.data).__name__
        raise ValueError(f"{run.path}: its data, {name}, have no tokenizer; generate from a run on text")
    if config.model.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"{run.path}: LanguageModelConfig.vocab_size={config.model.vocab_size} must be at least the "
            f"{tokenizer.vocab_size} ids of the tokenizer {tokenizer.name!r}; this model was not trained on its tokens"
        )
    return tokenizer


def _choose(manager: ocp.CheckpointManager, step: int | None, directory: Path) -> int:
    steps = sorted(manager.all_steps())
    if not steps:
        raise ValueError(f"{directory} holds a run without checkpoint; train it until it has saved one")
    if step is not None and step not in steps:
        raise ValueError(f"checkpoint {step} must be one of {', '.join(map(str, steps))}, those in {directory}")
    return steps[-1] if step is None else step


def _variables(state: dict) -> Variables:
    """Those of a stored train state."""
    return Variables(state["params"], state.get("buffers") or {})


def _shapes(variables: Variables) -> dict[str, tuple[int, ...]]:
    """Shape of each variable by its name."""
    leaves = [leaf for tree in variables for leaf in jax.tree.leaves_with_path(tree)]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _check_same_model(stored: Variables, blueprint: Blueprint, where: str) -> None:
    """Compares names and shapes: Orbax restores what it finds, and leaves out what it does not."""
    found, expected = _shapes(stored), _shapes(blueprint.shapes)
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"{where} is of another model: variable {name} has shape {found.get(name)} there and "
                f"{expected.get(name)} by config.json; restore the run's own config.json"
            )


def _restore(manager: ocp.CheckpointManager, step: int, blueprint: Blueprint) -> tuple[Variables, str]:
    """The variables, and the fingerprint of the data that they have seen."""
    device = SingleDeviceSharding(jax.devices()[0])
    item = {
        name: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)
        for name, tree in blueprint.shapes._asdict().items()
        if tree
    }
    only_variables: Any = ocp.args.PyTreeRestore(
        item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
    )
    args: Any = ocp.args.Composite(state=only_variables, data=ocp.args.JsonRestore())
    restored = manager.restore(step, args=args)
    return _variables(restored["state"]), restored["data"]["fingerprint"]


@contextlib.contextmanager
def _reading(directory: Path, step: int) -> Iterator[None]:
    """One kind of error for all that the storage layer says of a damaged checkpoint."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(f"{directory}: checkpoint {step} cannot be read: {reason}") from error
