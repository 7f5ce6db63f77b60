"""Run directories. Kills: a file of somebody else that is deleted, two processes in one run."""

import dataclasses
import json
from pathlib import Path

import pytest

from jaxzoo.config.config_io import to_json
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.train.run_dir import RunDirectory

CONFIG = {
    "model": {"d_model": 8, "pattern": [{"type": "A"}]},
    "train": {"steps": 5, "log_every": 1},
    "mesh": {"data": 1},
}


@pytest.fixture
def directory(tmp_path):
    """A run with one of each file, an unfinished one among them."""
    run = RunDirectory(tmp_path / "deep" / "run")
    run.create(CONFIG, {"train": [["a", 1, "x"]]})
    (run.checkpoints / "3").mkdir(parents=True)
    (run.checkpoints / "3" / "data").write_text("x")
    (run.path / "metrics.jsonl.tmp").write_text("")
    (run.path / "speed.jsonl").write_text("")
    (run.profile / "plugins").mkdir(parents=True)
    (run.path / "events.out.tfevents.1.host").write_text("")
    return run


def snapshot(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


def test_a_run_is_never_lost(directory):
    """Kills: starting over a run without being told to."""
    with pytest.raises(ValueError, match="holds a run; continue it with --resume or replace it with --overwrite"):
        directory.check(resume=False, overwrite=False)
    directory.check(resume=True, overwrite=False)
    directory.check(resume=False, overwrite=True)
    with pytest.raises(ValueError, match="--resume and --overwrite exclude each other"):
        directory.check(resume=True, overwrite=True)


def test_a_run_that_came_meanwhile_is_kept(directory):
    """Kills: of two runs that began at once, the slower one, which replaces the other when that has ended."""
    directory.release()
    before = snapshot(directory.path)
    with pytest.raises(ValueError, match="holds a run; continue it with --resume or replace it with --overwrite"):
        RunDirectory(directory.path).create({"new": 1}, None, keep=True)
    assert snapshot(directory.path) == before


def test_a_stranger_s_files_are_not_deleted(directory):
    """Kills: --overwrite on a directory that holds more than a run."""
    for name in ("thesis.tex", "notes.tmp", "checkpoints_old", "other.jsonl.tmp"):
        (directory.path / name).write_text("dear")
        before = snapshot(directory.path)
        with pytest.raises(ValueError, match=f"holds '{name}', which no run wrote; choose another place with"):
            directory.check(resume=False, overwrite=True)
        directory.check(resume=True, overwrite=False)
        assert snapshot(directory.path) == before
        (directory.path / name).unlink()


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "checkpoints",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("config.json.tmp", "metrics.jsonl", "events.out.tfevents.9.x", "checkpoints/3")
        ),
    ],
)
def test_no_run_writes_through_a_link(directory, tmp_path, name):
    """Kills: files of somebody else that are cut or deleted, because a link in the run directory points to them."""
    place, elsewhere = directory.path / name, tmp_path / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    place.symlink_to(elsewhere)
    for flags in ({"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}):
        if directory.holds_run:
            with pytest.raises(ValueError, match=f"/run/{name} is a symbolic link, which no run made; put what it "):
                directory.check(**flags)
    linked = tmp_path / "linked"
    linked.symlink_to(directory.path.parent)
    place.unlink()
    if directory.holds_run:
        RunDirectory(linked / "run").check(resume=True, overwrite=False)


def test_an_edited_config_is_named(directory):
    """Kills: a parser's complaint that does not say in which file, and its traceback where it is nested too deep."""
    for text, rule in (
        ("", "must be JSON: .*"),
        ("{", "must be JSON: .*"),
        ("[" * 100_000, "must be nested at most 64 levels deep"),
        ("[3]", r"\[3\] must be an object"),
    ):
        directory.config.write_text(text)
        with pytest.raises(ValueError, match=rf"/run/config\.json: {rule}; restore what the run wrote$"):
            directory.check_same(CONFIG)


def test_resume_refuses_another_experiment(directory):
    """Kills: a resumed run that is neither the old nor the new one; cadence and mesh must stay free."""
    directory.check_same({**CONFIG, "train": {"steps": 5, "log_every": 7}, "mesh": {"data": 8}})
    directory.check_same({**CONFIG, "train": {"steps": 6, "log_every": 1}})
    with pytest.raises(ValueError, match=r"^--resume: train\.steps is 4 and must be at least the 5 of "):
        directory.check_same({**CONFIG, "train": {"steps": 4, "log_every": 1}})
    with pytest.raises(ValueError, match=r'^--resume: model\.pattern\.0\.type is "B" but the run in .* has "A";'):
        directory.check_same({**CONFIG, "model": {"d_model": 8, "pattern": [{"type": "B"}]}})


def test_two_processes_never_write_to_one_run(directory):
    """Kills: a second --resume, or an --overwrite, while the run is still going."""
    other = RunDirectory(directory.path)
    before = snapshot(directory.path)
    with pytest.raises(ValueError, match="in use by another training process; wait for it, stop it, or choose"):
        other.claim()
    with pytest.raises(ValueError, match="in use by another"):
        other.create({"new": 1}, None)
    assert snapshot(directory.path) == before
    directory.release()
    other.create({"new": 1}, None)
    assert json.loads(directory.config.read_text()) == {"new": 1}
    other.release()


def test_a_directory_that_is_moved_away(directory, tmp_path):
    """Kills: a run that goes on in a new directory without a config, or in that of another run."""
    directory.path.rename(tmp_path / "elsewhere")
    for other in (False, True):
        if other:
            directory.path.mkdir()
        with pytest.raises(OSError, match="/run was moved or removed while the run writes to it; bring it back"):
            directory.check_place()
    directory.path.rmdir()
    (tmp_path / "elsewhere").rename(directory.path)
    directory.check_place()
    directory.release()


def test_resume_of_a_run_that_an_older_version_began(directory):
    """Kills: a new field that ends the runs of all older versions; one that may have any value there."""
    task = Examples(task=mqar.paper(length=16, n_pairs=2, vocab_size=32), n_examples=64)
    config = RunConfig(
        model=LanguageModelConfig(pattern=(AttentionConfig(),), d_model=8, vocab_size=32),
        data=RecallDataConfig(train=(task,), valid=(task,)),
    )
    older = to_json(config)
    del older["optimizer"]["clip_norm"]
    directory.config.write_text(json.dumps(older))
    directory.check_same(to_json(config))
    other = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, clip_norm=0.5))
    with pytest.raises(ValueError, match=r"^--resume: optimizer\.clip_norm is 0\.5 but the run in .* has 1\.0;"):
        directory.check_same(to_json(other))
