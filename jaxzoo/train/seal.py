"""The seal of a checkpoint: all that belongs to its arrays, in one file that vouches for itself."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from jaxzoo.config_io import Json
from jaxzoo.train.digest import Digests

ITEM = "seal"
"""Name of its folder in that of the step."""


class UnusableError(Exception):
    """A checkpoint cannot be used; the message names its file or array, and why."""


class Seal(NamedTuple):
    """Saved with the arrays of a step. One file holds it all, so that no part can be exchanged for another's."""

    step: int
    """Updates that the state has seen; the name of the step's folder says the same."""
    cursor: dict
    """The data cursor."""
    config: Json
    """The experiment."""
    n_rows: int
    """Rows of metrics up to the step."""
    digests: Digests
    """Digests of all arrays of the state."""

    def to_json(self) -> dict:
        """The fields, as JSON gives them back, and the SHA-256 of their text."""
        content = json.loads(json.dumps(self._asdict()))
        return {**content, "sha256": _sha256(content)}

    def check_digests(self, found: Digests) -> None:
        """Raises UnusableError where arrays that were read, all of params for one, are not those that were saved."""
        parts = {name.split("/")[0] for name in found}
        saved = {name for name in self.digests if name.split("/")[0] in parts}
        wrong = sorted(name for name in saved | found.keys() if found.get(name) != self.digests.get(name))
        if wrong:
            more = f" and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
            raise UnusableError(f"state: {wrong[0]}{more}: not the numbers that were saved")


def read_seal(folder: Path) -> Seal:
    """The seal of the checkpoint in the folder of a step.

    Raises:
      UnusableError: it is missing or damaged, or of another step than the folder's name says.
    """
    file = folder / ITEM / "metadata"
    name = file.relative_to(folder)
    try:
        content = json.loads(file.read_bytes())
        sha256 = content.pop("sha256")
        seal = Seal(**content)
    except OSError as error:
        raise UnusableError(f"{name}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UnusableError(f"{name} is damaged") from None
    if sha256 != _sha256(content):
        raise UnusableError(f"{name} is damaged: its text has another SHA-256 than it says")
    if folder.name != str(seal.step):
        raise UnusableError(f"{name} is of step {seal.step}, but the folder is named {folder.name}")
    return seal


def _sha256(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
