"""Import of variables as runs with one checkpoint, of step 0, without optimizer state."""

from collections.abc import Callable
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
    """Makes a run whose one checkpoint, of step 0, holds the variables of a file of `write_portable`; returns its
    manifest.

    Raises:
      ValueError: the directory exists; the file was not exported by jaxzoo, or its arrays do not fit its config.
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
    run: RunDirectory,
    config: Json,
    variables: Variables,
    note: dict[str, Json],
    tokenizer: str,
    write_more: Callable[[], object] | None = None,
) -> None:
    """Makes a run whose one checkpoint, of step 0, holds these variables.

    Args:
      note: source of the variables; their digest is added.
      tokenizer: fingerprint of the tokenizer of its text; empty: no text.
      write_more: writes other files of the run. The checkpoint, with which the run is complete, comes last.

    Raises:
      ValueError, OSError: as `RunDirectory.create`.
    """
    if broken := first_not_finite(variables):
        raise ValueError(f"{broken} is not finite: the model is damaged, or its training has diverged")
    parts = {name: tree for name, tree in variables._asdict().items() if tree}
    run.create(config, None, {**note, "digest": variables_digest(variables), "imported": True})
    if write_more is not None:
        write_more()
    cursor = {"fingerprint": f"{tokenizer}:imported"} if tokenizer else {}
    with Checkpoints(run.checkpoints, record=run.newest_checkpoint) as checkpoints:
        checkpoints.save(0, parts, cursor=cursor, config=config)
    run.release()
