"""Where a run begins that does not begin with random numbers: parameters and buffers of another run's checkpoint.

The optimizer, the step, the data cursor and the random keys are those of a run that begins.
"""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from jaxzoo.config_io import Json, first_difference, from_json, to_json
from jaxzoo.models.blueprint import Variables
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.screen import warn
from jaxzoo.train.digest import joint_digest
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.seal import Seal
from jaxzoo.train.session import Session
from jaxzoo.train.stored import Which, find_run, first_other_shape, read_stored

OPTION = "--init-from"

MAY_DIFFER = frozenset({"max_length", "dtype", "remat", "init_std", "out_init_std"})
"""Fields of a model, beside dropout rates, that say nothing about the function that its variables stand for."""


class Place(NamedTuple):
    """A checkpoint of a run."""

    run: Path
    """Directory of the run."""
    step: Which
    """Which checkpoint."""

    @classmethod
    def parse(cls, text: str) -> "Place":
        """`RUN`, `RUN:STEP` or `RUN:best`; a directory whose own name ends so has precedence."""
        named = re.fullmatch(r"(.+):([0-9]+|best)", text)
        if named and not Path(text).expanduser().exists():
            return cls(Path(named[1]).expanduser(), "best" if named[2] == "best" else int(named[2]))
        return cls(Path(text).expanduser(), None)


class Origin(NamedTuple):
    """Variables to begin with, and where they are from."""

    variables: Variables
    """In the shardings of the session that asked for them."""
    note: Json
    """What the run remembers: `{"run": ..., "step": ..., "digest": ...}`, the digest that of all variables."""

    def __str__(self) -> str:
        return f"step {self.note['step']} of {self.note['run']}"


def read_origin(place: Place, session: Session) -> Origin:
    """The variables of a checkpoint, bit for bit, each read to where the session keeps it.

    Names, shapes and dtypes must be those of the session's model. A warning says where the two models are different
    functions all the same, or their texts are of different tokenizers.

    Args:
      place: the checkpoint.
      session: the one that begins.

    Raises:
      ValueError: there is no such checkpoint, or it is of another model.
      OSError: it cannot be read, or holds other numbers than were saved.
    """
    run = find_run(place.run, OPTION)
    abstract = session.abstract_state.variables
    variables, seal = read_stored(run, place.step, abstract, lambda seal: _check(seal, run, abstract))
    _warn_of_other_model(seal, run, session.config.model)
    _warn_of_other_tokens(seal, run, session)
    note = {"run": str(run.path), "step": seal.step, "digest": joint_digest(seal.digests, Variables._fields)}
    return Origin(variables, note)


def _check(seal: Seal, run: RunDirectory, abstract: Variables) -> None:
    other = first_other_shape(seal, abstract)
    if other:
        name, there, here = other
        raise ValueError(
            f"{OPTION} {run.path}: variable {name} has shape {there} in checkpoint {seal.step} and {here} in this "
            "model; set the fields of --model to those of that run"
        )


def _warn_of_other_model(seal: Seal, run: RunDirectory, model: LanguageModelConfig) -> None:
    there, here = seal.config["model"], to_json(model)
    with contextlib.suppress(ValueError):  # of a class that nothing here has imported: another one
        there = to_json(from_json(there, LanguageModelConfig))  # with fields of which an older version knew nothing
    ignored: set[str] = set()
    while found := first_difference(there, here, ignore=ignored, path="model"):
        field, old, new = found
        name = field.rpartition(".")[2]
        if name not in MAY_DIFFER and not name.endswith("dropout"):
            warn(f"{OPTION} {run.path}: {field} is {new!r} here and {old!r} there, with the same variables")
            return
        ignored.add(field)


def _warn_of_other_tokens(seal: Seal, run: RunDirectory, session: Session) -> None:
    there, here = (_tokenizer_of(cursor) for cursor in (seal.cursor, session.dataset.train().get_state()))
    if there != here:
        warn(f"{OPTION} {run.path}: trained on tokens of {there}, and these are of {here}: ids have other meanings")


def _tokenizer_of(cursor: dict) -> str:
    """Fingerprint of the tokenizer of a stream of text, for a message."""
    made_by = cursor.get("fingerprint")
    return repr(made_by.rpartition(":")[0]) if isinstance(made_by, str) else "no tokenizer"
