"""Directories that a command fills in parts: killed at any point and started again, it ends with the same bytes."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxzoo.config.checked import shorten
from jaxzoo.config.config_io import first_difference
from jaxzoo.data.pieces.share_out import Report, is_shared, share_out
from jaxzoo.utils.checksums import add_checksum, read_checked
from jaxzoo.utils.whole_files import write_json

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ResumableDirectory:
    """Directory of results, with unfinished work in it; several commands may share the work.

    Raises `ValueError` if the directory holds something else, or results that were begun with another plan.
    """

    path: Path
    plan: Mapping[str, Any]
    """Everything that determines the results, the most important fields first."""
    plan_file: str = "plan.json"
    """Holds the plan; the first file."""
    parts: str = "parts"
    """Directory of the notes of finished parts of the work."""
    result: str = "manifest.json"
    """The last file; where `plan_file` is temporary, it holds the plan as well."""
    temporary: tuple[str, ...] = ("plan.json", "parts")
    """Files and directories that are removed once the results exist."""

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Raises `ValueError` as the class does; again before the work, as another command may have begun since."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out {self.path} must be a directory")
        in_result = self.is_finished and self.plan_file in self.temporary
        name = self.result if in_result else self.plan_file
        if not (self.path / name).is_file():
            others = sorted(path.name for path in self.path.glob("*") if not path.match(f"{name}.*.tmp"))
            if others:
                rule = f"holds {others[0]!r}, which this command did not write"
                raise ValueError(f"--out {self.path} {rule}; choose another place")
            return
        found = read_checked(self.path / name, dict, remedy=f"remove {self.path} and start again")
        wanted = json.loads(json.dumps(self.plan))
        difference = first_difference({key: found.get(key) for key in wanted}, wanted)
        if difference:
            field, old, new = difference
            rule = f"holds other results: {field} is {shorten(old)} there and {shorten(new)} here"
            raise ValueError(f"--out {self.path} {rule}; choose another place, or remove it")

    @property
    def is_finished(self) -> bool:
        """Whether the results exist."""
        return (self.path / self.result).is_file()

    def note(self, name: str) -> Path:
        """Note of a part, which is finished where it exists."""
        return self.path / self.parts / f"{name}.json"

    def make(
        self,
        make_part: Callable[..., None],
        arguments: Mapping[str, tuple[Any, ...]],
        finish: Callable[[], None],
        *,
        prepare: Callable[[], None] = lambda: None,
        workers: int = 1,
        report: Report = lambda *_: None,
    ) -> bool:
        """Makes the missing parts and then the results; removes what is left of unfinished work.

        Args:
            make_part: function of a module, called with the arguments of a part and its note, which it writes last.
            arguments: by name of the part.
            finish: writes the results of all parts, the file `result` last.
            prepare: writes what the parts need.
            workers: processes, each for one part at a time.
            report: as in `share_out`, of parts.

        Returns:
            False if the results existed already.
        """
        self._check()
        claims = self.path / self.parts / ".claims"
        if is_new := not self.is_finished:
            notes = {self.note(name): given for name, given in arguments.items()}
            with self._begun(claims):
                prepare()
                share_out(make_part, notes, workers=workers, claims=claims, report=report)
            share_out(lambda _: finish(), {self.path / self.result: ()}, workers=1, claims=claims)
        if not is_shared(claims):
            for left in (*(self.path / name for name in self.temporary), *self.path.glob("*.tmp")):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
        return is_new

    def write_manifest(self, results: Mapping[str, Any]) -> None:
        """Writes a `result` that holds the plan and these results."""
        write_json(self.path / self.result, add_checksum({**self.plan, **results}))

    @contextlib.contextmanager
    def _begun(self, claims: Path) -> Iterator[None]:
        """Makes the directory and writes its plan; removes them if the block refuses an input before there are notes.

        Otherwise a command with the repaired input would find another plan.
        """
        existed = self.path.exists()
        was_empty = not any(self.path.glob("*"))
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / self.plan_file).exists():
            write_json(self.path / self.plan_file, add_checksum(self.plan))
        self._check()
        (self.path / self.parts).mkdir(parents=True, exist_ok=True)
        try:
            yield
        except ValueError:
            if was_empty and not any((self.path / self.parts).glob("*-[0-9]*.json")) and not is_shared(claims):
                shutil.rmtree(self.path)
                if existed:
                    self.path.mkdir()
            raise


def read_manifest(path: Path, declared: type[T], format: int, what: str, *, command: str, remedy: str) -> T:
    """Reads `manifest.json` of finished results as `read_json` does.

    Raises `ValueError` if it is damaged or of another format, with the remedy, or missing, with what the directory
    lacks and the command that makes it.
    """
    file = path / "manifest.json"
    if not file.is_file():
        raise ValueError(f"{path} holds no {what}: {file.name} is missing; make them, or finish them, with {command}")
    found = read_checked(file, dict, remedy=remedy).get("format")
    if found != format:
        raise ValueError(f"{file}: format={found!r} must be {format}; {remedy}")
    return read_checked(file, declared, remedy=remedy)
