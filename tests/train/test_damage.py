"""Damaged checkpoints. Kills: wrong numbers that are restored without a warning."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from jaxzoo.config.config_io import to_json
from jaxzoo.train.checkpoint import CheckpointManifest, Checkpoints, UnusableError, folders, read_seal
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState

pytestmark = [
    pytest.mark.usefixtures("leftovers"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OLD, NEW = 2, 4


def delete(file: Path, _: random.Random) -> None:
    file.unlink()


def truncate(file: Path, rng: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(1, len(data))])


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def scatter(file: Path, _: random.Random) -> None:
    """Flips a bit in every 16 bytes: a single one may hit what is not read."""
    data = bytearray(file.read_bytes())
    data[::16] = bytes(byte ^ 1 for byte in data[::16])
    file.write_bytes(data)


def empty(file: Path, _: random.Random) -> None:
    file.write_bytes(b"")


DAMAGES = {damage.__name__: damage for damage in (delete, truncate, flip, empty)}


class Saved:
    """A run with checkpoints of two steps, and what each of them must give back."""

    def __init__(self, config, directory: Path):
        session = Session(config, devices=jax.devices()[:1])
        self.abstract, self.config, self.directory = session.abstract_state, to_json(config), directory
        self.record = directory / "newest_checkpoint.json"
        self.truth: dict[int, tuple] = {}
        with jax.set_mesh(session.mesh), Checkpoints(directory / "c", keep=9, record=self.record) as checkpoints:
            state, stream = session.init_state(), session.dataset.train()
            for step in range(1, NEW + 1):
                state, _ = session.update(state, next(stream))
                if step % 2 == 0:
                    cursor = stream.get_state()
                    checkpoints.save(step, state, cursor=cursor, config=self.config, n_rows=step)
                    self.truth[step] = bits(state), cursor
        self.mesh = session.mesh

    def copy(self, directory: Path) -> "Saved":
        """The same in another directory, to be damaged."""
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.directory, directory)
        other = Saved.__new__(Saved)
        other.__dict__ = {**self.__dict__, "directory": directory, "record": directory / self.record.name}
        return other

    def folder(self, step: int) -> Path:
        return self.directory / "c" / str(step)

    def files(self, step: int) -> list[str]:
        return sorted(str(f.relative_to(self.folder(step))) for f in self.folder(step).rglob("*") if f.is_file())

    def restore(self) -> tuple[TrainState, CheckpointManifest] | None:
        checkpoints = Checkpoints(self.directory / "c", record=self.record)
        with jax.set_mesh(self.mesh):
            return checkpoints.restore_newest(self.abstract, self.config)

    def taken(self) -> int:
        """The step that a resumed run goes on from, whose numbers must be those of that step to the last bit."""
        restored = self.restore()
        assert restored is not None
        state, seal = restored
        step = seal.step
        assert (bits(state), seal.cursor) == self.truth[step]
        return step


def bits(state) -> list[bytes]:
    return [jax.device_get(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def saved(small_config, tmp_path_factory) -> Saved:
    return Saved(small_config, tmp_path_factory.mktemp("saved"))


@pytest.fixture
def copy(saved, tmp_path) -> Saved:
    return saved.copy(tmp_path / "copy")


@pytest.fixture
def warned(capfd) -> Callable[[], list[str]]:
    """The lines on standard error since the last call; nothing may come on standard output."""

    def lines() -> list[str]:
        out, err = capfd.readouterr()
        assert out == ""
        return err.splitlines()

    return lines


SCATTERED = [("flip", "numbers"), ("flip", "state/_METADATA")]
"""Files in which a single flipped bit may hit what is not read."""
DAMAGED = [
    ("flip", "numbers"),
    ("truncate", "state/manifest.ocdbt"),
    ("empty", "seal/metadata"),
    pytest.param("delete", "numbers", marks=pytest.mark.full),
    pytest.param("flip", "state/_METADATA", marks=pytest.mark.full),
    pytest.param("flip", "seal/metadata", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("how", "which"), DAMAGED)
def test_a_damaged_file_is_missed(how, which, copy, warned):
    """Kills: wrong numbers without a word (a flipped bit), pages of the storage layer's own words and tracebacks of
    its threads, a missing item."""
    damage = scatter if (how, which) in SCATTERED else DAMAGES[how]
    files = copy.folder(NEW).glob("state/ocdbt.process_0/d/*" if which == "numbers" else which)
    for file in list(files):
        damage(file, random.Random(0))
    assert copy.taken() == OLD
    (line,) = warned()
    start = f"warning: checkpoint {NEW} in {copy.directory / 'c'} cannot be used ("
    assert line.startswith((f"{start}seal", f"{start}state"))
    assert line.endswith(f"; taking that of step {OLD}")
    assert len(line) - len(str(copy.directory)) < 300


def test_names_and_parts_cannot_be_exchanged(copy, warned):
    """Kills: a folder renamed to another step, the cursor of another step, and a seal edited by hand."""
    copy.folder(NEW).rename(copy.folder(7))
    assert copy.taken() == OLD
    assert "checkpoint 7 in" in (line := warned()[0])
    assert "is of step 4, but the folder is named 7" in line
    copy.folder(7).rename(copy.folder(NEW))
    assert copy.taken() == NEW
    seal = copy.folder(NEW) / "seal" / "metadata"
    text = seal.read_text()
    seal.write_text(text.replace('"n_rows": 4', '"n_rows": 5'))
    assert copy.taken() == OLD
    assert "(seal is damaged: its sha256 is missing or that of another text)" in warned()[0]
    sealed = read_seal(copy.folder(OLD))._replace(step=NEW)
    seal.write_text(json.dumps(sealed.to_json()))
    assert copy.taken() == OLD
    assert "not the numbers that were saved" in warned()[0]


@pytest.mark.full
def test_a_checkpoint_of_an_older_version_is_taken(copy):
    """Kills: a field that this version added, for which all older checkpoints are of another experiment."""
    config = json.loads(json.dumps(copy.config))
    del config["optimizer"]["clip_norm"]
    seal = copy.folder(NEW) / "seal" / "metadata"
    seal.write_text(json.dumps(read_seal(copy.folder(NEW))._replace(config=config).to_json()))
    assert copy.taken() == NEW


@pytest.mark.full
def test_none_good_is_one_error_that_says_what_was_tried(copy, warned):
    """Kills: a start at 0 where all are damaged or gone."""
    for step in (OLD, NEW):
        flip(copy.folder(step) / "seal" / "metadata", random.Random(0))
    with pytest.raises(UnusableError, match=r"^no checkpoint in .*/c can be used \(4: seal [^\n]*; 2: seal[^\n]*$"):
        copy.restore()
    for step in (OLD, NEW):
        shutil.rmtree(copy.folder(step))
    with pytest.raises(UnusableError, match=r"can be used \(4: its folder is gone\)$"):
        copy.restore()
    shutil.rmtree(copy.directory / "c")
    with pytest.raises(UnusableError, match="its folder is gone"):
        copy.restore()
    assert warned() == []


@pytest.mark.full
def test_a_save_that_was_killed_is_no_loss(copy, warned):
    """Kills: a run that cannot go on because its process died in its first save; tracebacks of a damaged note."""
    copy.folder(NEW).rename(copy.directory / "c" / f"{NEW}.orbax-checkpoint-tmp")
    assert copy.taken() == OLD
    shutil.rmtree(copy.folder(OLD))
    assert copy.restore() is None
    for text, rule in (
        ("{", "must be JSON: "),
        ("[" * 100_000, "must be nested at most"),
        ("{}", "newest is missing"),
        ('{"newest": true}', "newest=True must be an integer"),
        ('{"newest": ["**"]}', "newest=['**'] must be an integer"),
    ):
        copy.record.write_text(text)
        assert copy.restore() is None
        (line,) = warned()
        assert line.startswith(f"warning: {copy.record}: {rule}")
        assert line.endswith("; ignored")


@pytest.mark.full
def test_a_later_save_of_a_damaged_step(copy, saved, warned):
    """Kills: a save that fails because the damaged checkpoint has its name; one that counts among the newest."""
    flip(copy.folder(NEW) / "seal" / "metadata", random.Random(0))
    (copy.directory / "c" / "8.orbax-checkpoint-tmp-1").mkdir()
    restored = copy.restore()
    assert restored
    with jax.set_mesh(copy.mesh), Checkpoints(copy.directory / "c", keep=2, record=copy.record) as checkpoints:
        checkpoints.begin_at(OLD)
        assert checkpoints.newest == OLD
        assert json.loads(copy.record.read_text()) == {"newest": OLD}
        for step in (3, NEW):
            state = restored[0]._replace(step=restored[0].step + (step - OLD))
            checkpoints.save(step, state, cursor={"step": step}, config=copy.config)
    names = sorted(p.name for p in (copy.directory / "c").iterdir())
    assert names == ["3", "4"]
    assert json.loads(copy.record.read_text()) == {"newest": NEW}
    warned()
    again = copy.restore()
    assert again
    assert again[1].cursor == {"step": NEW}
    assert warned() == []
    assert list(folders(copy.directory / "c")) == [NEW, 3]
