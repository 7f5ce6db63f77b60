"""Parts that evaluations share: the run with overridden fields, and the output."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxzoo.cli.flags import UsageError, override
from jaxzoo.cli.runner import say
from jaxzoo.config.config_io import first_difference
from jaxzoo.config.json_files import read_json
from jaxzoo.evals.validation import Validation, progress_note
from jaxzoo.loading.trained import Which, load_variables, read_run, require_shapes, shapes_of
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.adapters import AdaptedBlueprint
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.train.session import Session
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.screen import warn
from jaxzoo.utils.whole_files import write_whole

PROGRAM = "jaxzoo evaluate"


class OpenRun(NamedTuple):
    """A trained model with overridden fields of its config."""

    directory: Path
    session: Session
    variables: Variables
    """Variables, in the host's memory."""
    step: int
    n_parameters: int

    def evaluate(self) -> dict[str, float]:
        """Metrics on the validation sets."""
        with jax.set_mesh(self.session.mesh), show_progress("batches") as report:
            return Validation(self.session).evaluate(self.variables, report)


def open_run(path: str, flags: Sequence[str], checkpoint: Which) -> OpenRun:
    """Reads a run, with fields of its config replaced by flags. Raises `ValueError`."""
    directory, trained = read_run(Path(path).expanduser())
    config = override(trained, flags, prog=PROGRAM)
    blueprint, variables, seal = load_variables(directory, trained, checkpoint)
    try:
        session = Session(config, limited=True)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    check_variables(path, blueprint, session.blueprint)
    if config.data == trained.data and directory.manifest.is_file():
        then = read_json(directory.manifest, dict, remedy="restore what the run wrote")
        now: Any = json.loads(json.dumps(session.dataset.manifest()))
        if found := first_difference(then, now, ignore={"data.train"}, path="data"):
            warn(f"{path}: the data have changed since the run was trained ({found[0]} differs); other text is scored")
    n = count_parameters(blueprint.model(variables))
    say(f"{path}: {n:,} parameters, {progress_note(seal.step, trained.train)}, {jax.devices()[0].device_kind}")
    return OpenRun(directory.path, session, jax.device_get(variables), seal.step, n)


def check_variables(path: str, trained: Blueprint, asked: Blueprint | AdaptedBlueprint) -> None:
    """Raises `ValueError` with the first variable that the two models do not share."""
    end = "with these flags; --model flags may change the computation, but not the variables"
    require_shapes(shapes_of(trained.shapes), asked.shapes, path, end)


def write_results(table: str, out: Path | None, report: Any) -> None:
    """Writes a report (JSON-able) to `out`, if given, and prints a table."""
    if out is not None:
        text = json.dumps(report, indent=1) + "\n"
        if out.exists() and not out.is_file():  # such as /dev/stdout
            out.write_text(text)
        else:
            write_whole(out.resolve(), text)
        say(f"written to {out}")
    print(table, flush=True)
