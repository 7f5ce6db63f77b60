"""Runs made of variables: their one checkpoint, that of step 0, has no optimizer."""

from pathlib import Path

import jax

from jaxzoo.config_io import Json
from jaxzoo.models.blueprint import Variables, make_blueprint
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.portable import Header, read_header, read_portable, variables_digest
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.trained import on_device, read_experiment, require_shapes


def import_run(file: Path, run: RunDirectory) -> Header:
    """Makes a run whose one checkpoint, that of step 0, holds the variables of a file; returns what the file says.

    Args:
      file: as `write_portable` writes it.
      run: where the run will lie; must hold none.

    Raises:
      ValueError: the place is taken; the file is none of ours, or its arrays are not those of the model that it names.
      OSError: the file is damaged, or the run cannot be written.
    """
    run.check(resume=False, overwrite=False)
    header = read_header(file)
    config = read_experiment(header.config, file)
    abstract = on_device(make_blueprint(config.model).shapes, jax.devices("cpu")[0])
    require_shapes(header.shapes, abstract, f"{file} is of another model", "by its config")
    variables = read_portable(file, header, abstract)
    create_imported(
        run, header.config, variables, {"file": str(file.absolute()), "step": header.step}, header.tokenizer
    )
    return header


def create_imported(
    run: RunDirectory, config: Json, variables: Variables, note: dict[str, Json], tokenizer: str
) -> None:
    """Makes a run whose one checkpoint, that of step 0, holds these variables.

    Args:
      run: where the run will lie; claimed when this returns.
      config: the experiment.
      variables: all that its model holds.
      note: where they are from; their digest is added.
      tokenizer: fingerprint of the tokenizer of its text; empty: no text.

    Raises:
      ValueError, OSError: as `RunDirectory.create`.
    """
    parts = {name: tree for name, tree in variables._asdict().items() if tree}
    run.create(config, None, {**note, "digest": variables_digest(variables), "imported": True})
    cursor = {"fingerprint": f"{tokenizer}:imported"} if tokenizer else {}
    with Checkpoints(run.checkpoints, record=run.newest_checkpoint) as checkpoints:
        checkpoints.save(0, parts, cursor=cursor, config=config)
    run.release()
