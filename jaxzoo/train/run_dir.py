"""A run's directory: its files, and the lock that keeps other processes from writing there."""

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxzoo.config.checked import shorten
from jaxzoo.config.config_io import Json, completed, first_difference
from jaxzoo.config.json_files import read_json
from jaxzoo.utils.whole_files import refuse_links, unfinished, write_json, write_whole

EVENTS = "events.out.tfevents."
"""Beginning of the names of TensorBoard's files."""

LOCK = ".lock"
"""Name of the file that is locked while a process writes to the run; never removed."""

MAY_CHANGE = frozenset(
    {
        "train.log_every",
        "train.eval_every",
        "train.checkpoint_every",
        "train.keep_checkpoints",
        "train.keep_best",
        "train.best_metric",
        "train.stop_at_accuracy",
        "train.pallas_kernels",
        "train.steps",
        "mesh",
    }
)
"""Fields that a resumed run may change: when to log, validate, save and stop, and on which devices and
kernels it runs. `train.steps` may grow: the learning rate goes on by the schedule of the new number. All others change
what is learned."""


def default_run_dir(config_file: Path, *choices: str | None) -> Path:
    """`configs/mqar/based.py` -> `runs/mqar-based`; for a file outside a folder `configs`, its name alone.

    A mixer and a task that were chosen by name are appended: `runs/mqar-zoo-hyena`.
    """
    parts = config_file.with_suffix("").parts
    names = parts[-1:]
    if "configs" in parts:
        last = len(parts) - 1 - parts[::-1].index("configs")
        names = parts[last + 1 :]
    chosen = [choice.rpartition(":")[2].lower().replace("-", "_") for choice in choices if choice]
    return Path("runs", "-".join([*names, *chosen]))


def check_name(path: Path) -> None:
    """Raises `ValueError` for the path of a directory that Orbax would read as a pattern, or as an address."""
    found = re.search(r"[][*?\\]|:/", path.as_posix())
    what = f"the characters {found[0]!r}" if found else "characters that cannot be printed"
    if found or not path.as_posix().isprintable():
        raise ValueError(f"{shorten(str(path))} has {what}, with which checkpoints are lost; choose another place")


class InUseError(ValueError):
    """Another process writes to the run."""


class RunDirectory:
    """The files of one run, whose directory need not exist."""

    def __init__(self, path: Path):
        self.path = path
        self.config: Path = path / "config.json"
        self.origin: Path = path / "origin.json"
        self.manifest: Path = path / "manifest.json"
        self.metrics: Path = path / "metrics.jsonl"
        self.speed: Path = path / "speed.jsonl"
        self.profile: Path = path / "profile"
        self.picture: Path = path / "learning_curve.png"
        self.checkpoints: Path = path / "checkpoints"
        self.tokenizer: Path = path / "tokenizer"
        self.model: Path = path / "model.safetensors"
        self.newest_checkpoint: Path = path / "newest_checkpoint.json"
        # The operating system releases the lock when its process ends, however it ends.
        self._lock = FileLock(path / LOCK, thread_local=False)
        self._claimed: list[tuple[int, int] | None] | None = None

    @property
    def holds_run(self) -> bool:
        """Whether a run began here: its config is the first file that it writes."""
        return self.config.is_file()

    @property
    def is_imported(self) -> bool:
        """Whether it was imported from variables, or exported as a folder, and so has no optimizer state."""
        try:
            return self.model.is_file() or bool(read_json(self.origin, dict).get("imported"))
        except (OSError, ValueError):
            return False

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Raises `ValueError`, with a remedy, if a run or other files would be lost. Writes nothing."""
        check_name(self.path)
        if resume and overwrite:
            raise ValueError("--resume and --overwrite exclude each other")
        if resume and not self.holds_run:
            raise ValueError(f"{self.path} holds no run to resume; start it without --resume")
        if resume and self.is_imported:
            raise ValueError(f"{self.path} was imported, without an optimizer; begin another run with its --init-from")
        if self.holds_run and not (resume or overwrite):
            raise ValueError(f"{self.path} holds a run; continue it with --resume or replace it with --overwrite")
        self.check_links()
        first = (self.origin, self.config)  # a run that was killed before it had a config left no other files
        own = [LOCK, *(file.name for place in first for file in (place, unfinished(place, owned=True)))]
        if self.holds_run:
            files = (*self._files(), self.checkpoints, self.profile, self.tokenizer, *self.path.glob(f"{EVENTS}*"))
            own += [file.name for file in files]
        names = sorted(p.name for p in self.path.iterdir()) if self.path.exists() else []
        strangers = [name for name in names if name not in own]
        if strangers and not resume:
            raise ValueError(
                f"{self.path} holds {strangers[0]!r}, which no run wrote; choose another place with --run-dir"
            )

    def check_new(self) -> None:
        """Raises `ValueError` unless the directory of an import is empty or absent."""
        try:
            self.check(resume=False, overwrite=False)
        except ValueError as error:
            raise ValueError(f"{str(error).split(';')[0]}; choose another place with --out") from None

    def check_links(self) -> None:
        """Raises `ValueError` for a link, or a pipe, in place of a file or at any depth of a folder."""
        folders = [self.checkpoints, self.profile, self.tokenizer]
        refuse_links(*self._files(), *folders, self.path / LOCK, *self.path.glob(f"{EVENTS}*"))

    def check_same(self, config: Json) -> None:
        """Raises `ValueError` for a config that differs from the run's in a field outside `MAY_CHANGE`, by its name."""
        from jaxzoo.train.config import RunConfig  # loads JAX, for which --help does not wait

        stored: Any = completed(self.read_config(), RunConfig)
        asked: Any = config
        before = stored["train"]["steps"]
        after = asked["train"]["steps"]
        if after < before:
            raise ValueError(f"--resume: train.steps is {after} and must be at least the {before} of {self.path}")
        found = first_difference(stored, config, ignore=MAY_CHANGE)
        if found:
            field, old, new = found
            raise ValueError(
                f"--resume: {field} is {_short(new)} but the run in {self.path} has {_short(old)}; only "
                f"{', '.join(sorted(MAY_CHANGE))} may change; for all else begin a new run from its parameters, with "
                f"--init-from {self.path} and another --run-dir"
            )

    def read_config(self) -> Json:
        """Reads `config.json`.

        Raises:
          ValueError: it holds no JSON object.
          OSError: it cannot be read.
        """
        return read_json(self.config, dict, remedy="restore what the run wrote")

    def extend(self, steps: int) -> None:
        """Writes the increased number of steps of a resumed run. Raises `OSError`."""
        config: Any = self.read_config()
        if config["train"].get("steps", steps) < steps:
            self.write_config({**config, "train": {**config["train"], "steps": steps}})

    def claim(self) -> None:
        """Keeps other processes from writing here until `release`, or until this one ends.

        Raises:
          InUseError: another one writes here.
          OSError: the directory cannot be written.
        """
        if self._claimed is not None:
            return
        check_name(self.path)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InUseError(
                f"{self.path} is in use by another training process; wait for it, stop it, or choose another place "
                "with --run-dir"
            ) from None
        self._claimed = _identities(self.path, self.path / LOCK)

    def release(self) -> None:
        """Releases the directory, if it is claimed."""
        if self._claimed is not None:
            self._claimed = None
            self._lock.release()

    def check_place(self) -> None:
        """Raises OSError where the claimed directory, or its lock, was removed, renamed, or replaced by another."""
        if self._claimed is None or (found := _identities(self.path, self.path / LOCK)) == self._claimed:
            return
        if found[0] != self._claimed[0]:
            raise OSError(f"{self.path} was moved or removed while the run writes to it; bring it back")
        raise OSError(f"{self.path / LOCK} was removed while the run writes here; another process may write as well")

    def create(self, config: Json, manifest: Json | None, origin: Json | None = None, *, keep: bool = False) -> None:
        """Makes an empty run directory and claims it; a run that it held is removed.

        Args:
          manifest: description of the data; None: the config is enough.
          origin: source of its parameters; None: random.
          keep: refuses where there is a run: another process may have written it since `check`.

        Raises:
          OSError: it cannot be written; a directory that was made for it is removed again.
          ValueError: another process writes here, or there is a run to keep.
        """
        missing = [p for p in (self.path / LOCK, self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.claim()
            if keep:
                self.check(resume=False, overwrite=False)
            self._remove_run()
            if origin is not None:
                write_json(self.origin, origin, owned=True)
            self.write_config(config)
            if manifest is not None:
                write_json(self.manifest, manifest, owned=True)
        except OSError:
            with contextlib.suppress(OSError):
                if self._claimed is not None:
                    self._remove_run()
                self.release()
                for made in missing:
                    made.unlink() if made.name == LOCK else made.rmdir()
            raise
        except ValueError:
            self.release()
            raise

    def write_config(self, config: Json) -> None:
        """Writes `config.json`, whole or not at all."""
        write_whole(self.config, json.dumps(config, indent=2) + "\n", owned=True)

    def _remove_run(self) -> None:
        """Removes the files of a run, its config last, so that a half-removed run is still recognized."""
        for folder in (self.profile, self.checkpoints, self.tokenizer):
            if folder.is_dir():
                shutil.rmtree(folder)
        for file in (*self.path.glob(f"{EVENTS}*"), *self._files()):
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The files of a run except its events, unfinished ones first and the config last."""
        records = [self.metrics, self.speed, self.picture, self.manifest, self.newest_checkpoint, self.model]
        files = [*records, self.origin, self.config]
        return [*(unfinished(file, owned=True) for file in files), *files]


def _identities(*paths: Path) -> list[tuple[int, int] | None]:
    """Device and inode of each file or directory; None: it does not exist."""
    found = [path.stat() if path.exists() else None for path in paths]
    return [each and (each.st_dev, each.st_ino) for each in found]


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
