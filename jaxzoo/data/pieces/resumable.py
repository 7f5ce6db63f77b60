"""Directories that a command fills in steps: killed at any point and started again, it ends with the same bytes.

A file in the directory, written first, holds the plan: what determines the results. A command with another plan is
refused.
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
from jaxzoo.data.pieces.share_out import is_shared
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json


def check_plan(out: Path, name: str, plan: Mapping[str, Any]) -> bool:
    """Checks that a directory is absent or empty, or holds what was begun with this plan.

    Args:
        out: the directory.
        name: file of the plan.
        plan: its content, the most important fields first.

    Returns:
        Whether it was begun.

    Raises:
        ValueError: the directory holds something else; with the first difference of the plans.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} must be a directory")
    if not (out / name).is_file():
        others = sorted(path.name for path in out.iterdir() if not _is_draft(path, name)) if out.exists() else []
        if others:
            raise ValueError(f"--out {out} holds {others[0]!r}, which this command did not write; choose another place")
        return False
    found = read_json(out / name, dict, checksum=True, remedy=f"remove {out} and start again")
    wanted = json.loads(json.dumps(plan))
    difference = first_difference({key: found.get(key) for key in wanted}, wanted)
    if difference:
        field, old, new = difference
        raise ValueError(
            f"--out {out} holds other results: {field} is {shorten(old)} there and {shorten(new)} here; choose another "
            "place, or remove it"
        )
    return True


def write_plan(out: Path, name: str, plan: Mapping[str, Any]) -> None:
    """Makes the directory, and writes the plan unless it exists."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / name).exists():
        write_json(out / name, add_checksum(plan))


@contextlib.contextmanager
def removed_if_refused(out: Path, has_results: Callable[[], bool]) -> Iterator[None]:
    """Leaves a directory as absent or empty as it was, if the block refuses an input before it has results.

    Otherwise a command with the repaired input would find another plan.
    """
    existed = out.exists()
    was_empty = not existed or not any(out.iterdir())
    try:
        yield
    except ValueError:
        if was_empty and out.exists() and not has_results():
            shutil.rmtree(out)
            if existed:
                out.mkdir()
        raise


def remove_drafts(out: Path, *names: str) -> None:
    """Removes what killed commands have left of files."""
    for path in out.iterdir():
        if any(_is_draft(path, name) for name in names):
            path.unlink(missing_ok=True)


def _is_draft(path: Path, name: str) -> bool:
    return path.name.startswith(f"{name}.") and path.name.endswith(".tmp")


@dataclasses.dataclass(frozen=True)
class ResumableDirectory:
    """Directory of results, and of unfinished work next to them.

    `plan.json` is the first file. `parts/` holds the finished parts of the work. `manifest.json` is the last file, and
    holds the plan as well; with it, `plan.json` and `parts/` go.

    Args:
        path: the directory, which need not exist.
        plan: what determines the results, as JSON; `kind` tells the command from others.
    """

    path: Path
    plan: Mapping[str, Any]

    @property
    def parts(self) -> Path:
        """Directory of the finished parts."""
        return self.path / "parts"

    def removed_if_refused(self) -> contextlib.AbstractContextManager[None]:
        """Leaves the directory as it was, if the block, which calls `begin`, refuses an input before a part is done."""
        return removed_if_refused(self.path, lambda: any(self.parts.glob("*.json")) or is_shared(self.claims))

    @property
    def claims(self) -> Path:
        """Directory of the locks of `share_out`."""
        return self.parts / ".claims"

    def begin(self) -> bool:
        """Makes the directory, or goes on with it.

        Returns:
            Whether the results are there already.

        Raises:
            ValueError: the directory holds something else.
            OSError: it cannot be written.
        """
        is_finished = (self.path / "manifest.json").is_file()
        check_plan(self.path, "manifest.json" if is_finished else "plan.json", self.plan)
        if is_finished:
            self._clean()
        else:
            write_plan(self.path, "plan.json", self.plan)
            self.parts.mkdir(exist_ok=True)
        return is_finished

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the manifest, which holds the plan and these results, and removes the unfinished work."""
        write_json(self.path / "manifest.json", add_checksum({**self.plan, **results}))
        self._clean()

    def _clean(self) -> None:
        (self.path / "plan.json").unlink(missing_ok=True)
        for draft in self.path.glob("*.tmp"):
            draft.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)
