"""Directories that a command fills in steps: killed at any point and started again, it ends with the same bytes.

A file in the directory, written first, holds the plan: everything that determines the results. A command with another
plan is refused.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxzoo.checked import shorten
from jaxzoo.config_io import first_difference
from jaxzoo.data.pieces.share_out import Piece, Report, is_shared, share_out
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json


def check_plan(out: Path, name: str, plan: Mapping[str, Any]) -> None:
    """Checks that a directory is absent or empty, or holds results that were begun with this plan.

    The file `name` holds the plan, its most important fields first. Raises `ValueError`, with the first difference of
    the plans, if the directory holds something else.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} must be a directory")
    if not (out / name).is_file():
        others = sorted(path.name for path in out.glob("*") if not path.match(f"{name}.*.tmp"))
        if others:
            raise ValueError(f"--out {out} holds {others[0]!r}, which this command did not write; choose another place")
        return
    found = read_json(out / name, dict, checksum=True, remedy=f"remove {out} and start again")
    wanted = json.loads(json.dumps(plan))
    difference = first_difference({key: found.get(key) for key in wanted}, wanted)
    if difference:
        field, old, new = difference
        raise ValueError(
            f"--out {out} holds other results: {field} is {shorten(old)} there and {shorten(new)} here; choose another "
            "place, or remove it"
        )


@contextlib.contextmanager
def begun(out: Path, name: str, plan: Mapping[str, Any], *, results: str, claims: Path) -> Iterator[None]:
    """Makes the directory and writes its plan; removes them if the block refuses an input before there are results.

    Otherwise a command with the repaired input would find another plan. `results` is the pattern of the files of
    results, `claims` the directory of the locks of `share_out`.
    """
    existed = out.exists()
    was_empty = not any(out.glob("*"))
    out.mkdir(parents=True, exist_ok=True)
    if not (out / name).exists():
        write_json(out / name, add_checksum(plan))
    try:
        yield
    except ValueError:
        if was_empty and not any(out.glob(results)) and not is_shared(claims):
            shutil.rmtree(out)
            if existed:
                out.mkdir()
        raise


def remove_drafts(out: Path) -> None:
    """Removes unfinished files of killed commands."""
    for draft in out.glob("*.tmp"):
        draft.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class ResumableDirectory:
    """Directory of results, with unfinished work next to them.

    `plan.json` is the first file, everything that determines the results; `kind` tells the command from others.
    `parts/` holds the finished parts of the work. `manifest.json` is the last file, and holds the plan as well; once it
    exists, `plan.json` and `parts/` are removed.
    """

    path: Path
    plan: Mapping[str, Any]

    def is_finished(self) -> bool:
        """Returns whether the results exist. Raises `ValueError` if the directory holds something else."""
        is_finished = (self.path / "manifest.json").is_file()
        check_plan(self.path, "manifest.json" if is_finished else "plan.json", self.plan)
        if is_finished:
            self._clean()
        return is_finished

    def make_parts(
        self,
        make: Callable[..., None],
        arguments: Mapping[str, tuple[Any, ...]],
        *,
        workers: int,
        report: Report = lambda *_: None,
    ) -> list[Path]:
        """Makes the missing parts, each by `make(*arguments, note)`; returns their notes, `parts/NAME.json`.

        `make` is a function of a module that writes the note last; `arguments` are by name of the part.
        """
        parts = self.path / "parts"
        notes = {name: parts / f"{name}.json" for name in arguments}
        pieces = [Piece(name, note, (*arguments[name], note)) for name, note in notes.items()]
        with begun(self.path, "plan.json", self.plan, results="parts/*.json", claims=parts / ".claims"):
            share_out(make, pieces, workers=workers, claims=parts / ".claims", report=report)
        return list(notes.values())

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the manifest, which holds the plan and these results, and removes the unfinished work."""
        write_json(self.path / "manifest.json", add_checksum({**self.plan, **results}))
        self._clean()

    def _clean(self) -> None:
        (self.path / "plan.json").unlink(missing_ok=True)
        remove_drafts(self.path)
        shutil.rmtree(self.path / "parts", ignore_errors=True)
