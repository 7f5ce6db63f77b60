"""Runs made of variables: their one checkpoint, that of step 0, has no optimizer."""

from pathlib import Path

import jax

from jaxzoo.config.config_io import Json
from jaxzoo.loading.trained import load_variables, read_experiment
from jaxzoo.models.blueprint import Variables
from jaxzoo.train.checkpoint import CheckpointManifest, Checkpoints, tokenizer_of
from jaxzoo.train.export import ExportedFile
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.state import first_not_finite
from jaxzoo.utils.checksums import variables_digest


def import_run(file: Path, run: RunDirectory) -> CheckpointManifest:
    """Makes a run whose one checkpoint, that of step 0, holds the variables of a file that `write_portable` wrote;
    returns what the file says.

    Raises:
      ValueError: the place is taken; the file is none of ours, or its arrays are not those of the model that it names.
      OSError: the file is damaged, or the run cannot be written.
    """
    run.check_new()
    source = ExportedFile(file.absolute())
    config = read_experiment(source.read_config(), file)
    _, variables, seal = load_variables(source, config, device=jax.devices("cpu")[0])
    create_imported(
        run, seal.config, variables, {"file": str(source.path), "step": seal.step}, tokenizer_of(seal.cursor)
    )
    return seal


def create_imported(
    run: RunDirectory, config: Json, variables: Variables, note: dict[str, Json], tokenizer: str
) -> None:
    """Makes a run whose one checkpoint, that of step 0, holds these variables.

    Args:
      note: where they are from; their digest is added.
      tokenizer: fingerprint of the tokenizer of its text; empty: no text.

    Raises:
      ValueError, OSError: as `RunDirectory.create`.
    """
    if broken := first_not_finite(variables):
        raise ValueError(f"{broken} is not finite: the model is damaged, or its training has diverged")
    parts = {name: tree for name, tree in variables._asdict().items() if tree}
    run.create(config, None, {**note, "digest": variables_digest(variables), "imported": True})
    cursor = {"fingerprint": f"{tokenizer}:imported"} if tokenizer else {}
    with Checkpoints(run.checkpoints, record=run.newest_checkpoint) as checkpoints:
        checkpoints.save(0, parts, cursor=cursor, config=config)
    run.release()
