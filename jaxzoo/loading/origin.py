"""First parameters and buffers of a run from a checkpoint of another run, or from a safetensors file."""

import re
from pathlib import Path
from typing import NamedTuple

from jaxzoo.config.config_io import Json, completed, first_difference, to_json
from jaxzoo.loading.trained import Which, find_run, read_merged
from jaxzoo.models.blueprint import Variables
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.checkpoint import tokenizer_of
from jaxzoo.train.export import ExportedFile, read_header
from jaxzoo.train.session import Session
from jaxzoo.train.state import first_not_finite
from jaxzoo.utils.checksums import variables_digest
from jaxzoo.utils.screen import warn

OPTION = "--init-from"

MAY_DIFFER = frozenset({"max_length", "dtype", "remat", "scan_layers", "init_std", "out_init_std"})
"""Fields of a model, besides dropout rates, that do not change the function that it computes."""


class CheckpointPlace(NamedTuple):
    """A checkpoint of a run, or a file."""

    path: Path
    """Directory of the run; or the file."""
    step: Which

    @classmethod
    def parse(cls, text: str) -> "CheckpointPlace":
        """Parses `RUN`, `RUN:STEP`, `RUN:best` or `FILE.safetensors`; an existing path has precedence."""
        named = re.fullmatch(r"(.+):([0-9]+|best)", text)
        if named and not Path(text).expanduser().exists():
            return cls(Path(named[1]).expanduser(), "best" if named[2] == "best" else int(named[2]))
        return cls(Path(text).expanduser(), None)

    def is_of(self, run: Path) -> bool:
        """Whether it is a checkpoint of the run in this directory, or a file in it, by any path."""
        place = self.path.resolve()
        return run.resolve() in (place, place.parent)


class Origin(NamedTuple):
    """First variables of a run, and their source."""

    variables: Variables
    """Variables with the shardings of the session."""
    note: Json
    """Entry of `origin.json`: `{"run": ..., "step": ..., "digest": ...}`, with the digest of all variables; `file`
    instead of `run` for variables from a file."""

    def __str__(self) -> str:
        return f"step {self.note['step']} of {self.note.get('run') or self.note['file']}"


def read_origin(place: CheckpointPlace, session: Session) -> Origin:
    """Reads the variables of a checkpoint or file into the sharding of a session.

    Warns if the models are different functions of the same variables, or the tokenizers differ.

    Raises:
      ValueError: the source is absent, or its names or shapes are of another model.
      OSError: it cannot be read, or its checksum differs.
    """
    source = place.path.absolute()
    abstract = session.blueprint.own(session.abstract_state.variables)
    run = find_run(source, OPTION)
    end = "in this model; set the --model fields to the values of its training"
    variables, seal = read_merged(run, place.step, session.config.model, abstract, f"{OPTION} {source}", end)
    tokenizer = tokenizer_of(seal.cursor)
    if isinstance(run, ExportedFile):
        note = {"file": str(source), "step": seal.step, "digest": read_header(source)[1]}
    else:
        note = {"run": str(source), "step": seal.step, "digest": variables_digest(variables)}
    broken = first_not_finite(variables)
    if broken:
        raise ValueError(f"{OPTION} {source}: {broken} is not finite; take another checkpoint")
    _warn_of_other_model(seal.config["model"], source, session.config.model)
    ours = tokenizer_of(session.dataset.train().get_state())
    if tokenizer != ours:
        warn(
            f"{OPTION} {source}: trained on tokens of {_shown(tokenizer)}, but these are of {_shown(ours)}: ids have "
            "other meanings"
        )
    return Origin(variables, note)


def _warn_of_other_model(there: Json, source: Path, model: LanguageModelConfig) -> None:
    there, here = completed(there, LanguageModelConfig), to_json(model)
    ignored: set[str] = set()
    while found := first_difference(there, here, ignore=ignored, path="model"):
        field, old, new = found
        name = field.rpartition(".")[2]
        if name not in MAY_DIFFER and not name.endswith("dropout"):
            warn(f"{OPTION} {source}: {field} is {new!r} here and {old!r} there, with the same variables")
            return
        ignored.add(field)


def _shown(tokenizer: str) -> str:
    return repr(tokenizer) if tokenizer else "no tokenizer"
