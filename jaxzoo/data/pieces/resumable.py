"""A directory that a command fills in steps: killed at any point and started again, it ends with the same bytes."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxzoo.whole_files import write_json


@dataclasses.dataclass(frozen=True)
class ResumableDirectory:
    """Where a command writes its results, and its unfinished work next to them.

    `plan.json` is the first file and says what is being made; `parts/` holds what is done of it; `manifest.json` is the
    last, and holds the plan among other things. What is left at the end: the results and the manifest.

    Args:
        path: the directory, which need not exist.
        plan: what determines the results, as JSON; `kind` tells the command from others.
    """

    path: Path
    plan: Mapping[str, Any]

    @property
    def parts(self) -> Path:
        """Where unfinished work lies."""
        return self.path / "parts"

    def begin(self) -> bool:
        """Makes the directory, or goes on with it.

        Returns:
            Whether the results are there already.

        Raises:
            ValueError: the directory holds something else.
            OSError: it cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out {self.path} must be a directory")
        finished = _read(self.path / "manifest.json")
        found = finished if finished is not None else _read(self.path / "plan.json")
        if found is None:
            self._refuse_strangers()
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "plan.json", dict(self.plan))
        else:
            self._check_same(found)
        if finished is not None:
            self._clean()
            return True
        self.parts.mkdir(exist_ok=True)
        return False

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the manifest, which holds the plan and these results, and removes the unfinished work."""
        write_json(self.path / "manifest.json", {**self.plan, **results})
        self._clean()

    def _check_same(self, found: Mapping[str, Any]) -> None:
        if found.get("kind") != self.plan["kind"]:
            raise ValueError(f"--out {self.path} holds what another command wrote; choose another directory")
        for key, value in self.plan.items():
            if found.get(key) != value:
                raise ValueError(
                    f"--out {self.path} holds a result of {key}={_short(found.get(key))}, this one would be of "
                    f"{_short(value)}; choose another directory, or remove that one"
                )

    def _refuse_strangers(self) -> None:
        names = sorted(p.name for p in self.path.iterdir()) if self.path.exists() else []
        for name in names:
            if not (name.startswith("plan.json.") and name.endswith(".tmp")):
                raise ValueError(f"--out {self.path} holds {name!r}, which this command did not write; choose another")

    def _clean(self) -> None:
        (self.path / "plan.json").unlink(missing_ok=True)
        for unfinished in self.path.glob("*.tmp"):
            unfinished.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    """Content of a JSON file; None: there is no file."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}; remove its directory and start again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object; remove its directory and start again")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
