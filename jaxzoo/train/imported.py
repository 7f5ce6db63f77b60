"""A run directory made from a file of variables: to be evaluated, generated from and begun with, not to be resumed."""

from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import UnknownTypeError, from_json
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.portable import Header, read_header, read_portable
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.stored import first_other_shape


def import_run(file: Path, run: RunDirectory) -> Header:
    """Makes a run whose one checkpoint, that of step 0, holds the variables of a file; returns what the file says.

    Args:
      file: as `jaxzoo.train.portable.write_portable` writes it.
      run: where the run will lie; must hold none.

    Raises:
      ValueError: the place is taken; the file is none of ours, or its arrays are not those of the model that it names.
      OSError: the file is damaged, or the run cannot be written.
    """
    run.check(resume=False, overwrite=False)
    header = read_header(file)
    try:
        config = from_json(header.config, ExperimentConfig)
    except UnknownTypeError as error:
        raise ValueError(f"{file}: {error}; name the file that defines it with --config FILE") from error
    shapes = make_blueprint(config.model).shapes
    place = SingleDeviceSharding(jax.devices("cpu")[0])
    abstract: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)

    def check(header: Header) -> None:
        other = first_other_shape(header.shapes, abstract)
        if other:
            name, there, here = other
            raise ValueError(
                f"{file} is of another model: variable {name} has shape {there} there and {here} by its config"
            )

    variables, _ = read_portable(file, abstract, check)
    note = {"file": str(file.absolute()), "step": header.step, "digest": header.digest, "imported": True}
    run.create(header.config, None, note)
    cursor = {"fingerprint": f"{header.tokenizer}:imported"} if header.tokenizer else {}
    with Checkpoints(run.checkpoints, record=run.newest_checkpoint) as checkpoints:
        parts = {name: tree for name, tree in variables._asdict().items() if tree}
        checkpoints.save(0, parts, cursor=cursor, config=header.config)
    run.release()
    return header
