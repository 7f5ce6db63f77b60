"""Runs at the edges: paths that storage misreads, saves that were not written, changed rows, locks that are gone."""

import contextlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxzoo.cli.convert import main as convert
from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.train import main as train
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.train import checkpoint
from jaxzoo.train.checkpoint import Checkpoints, UnusableError, newest_usable
from jaxzoo.train.metrics import MetricsLog, best_steps, read_rows
from jaxzoo.train.run_dir import RunDirectory

LAST_VERSION = Path(__file__).with_name("last_version.zip")
STATE = {"params": {"embedding": jnp.arange(12.0).reshape(3, 4), "norm": jnp.ones(2)}}


@pytest.mark.parametrize("name", ["a[1]", "back\\slash", "x[b]/run", "gs:/run", "esc\x1b[2J", "star*", "half\udc80"])
def test_a_path_that_storage_misreads_is_refused_at_once(name, mqar_file, run, tmp_path, capsys):
    """Kills: a run whose checkpoints are all lost, because Orbax took its path for a pattern, with status 0."""
    assert run(mqar_file, name) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "with which checkpoints are lost; choose another place" in line
    assert "\x1b" not in line
    assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match="with which checkpoints are lost"):
        SweepDirectory(tmp_path / name).create(About("e.py", "small"))
    (tmp_path / "folder").mkdir()
    assert convert(["--from", str(tmp_path / "folder"), "--out", str(tmp_path / name)]) == 2


def unmerged(monkeypatch):
    async def merge(*_, **__):
        pass

    monkeypatch.setattr("orbax.checkpoint._src.serialization.ocdbt_utils.merge_ocdbt_per_process_files", merge)


def other_manifest(monkeypatch):
    monkeypatch.setattr(checkpoint, "add_checksum", lambda content, field: {**content, field: "0"})


def other_numbers(monkeypatch):
    true = checkpoint.digests
    wrong = [{name: digest._replace(sum=1) for name, digest in true(STATE).items()}]
    monkeypatch.setattr(checkpoint, "digests", lambda tree: wrong.pop() if wrong else true(tree))


@pytest.mark.parametrize("damage", [unmerged, other_manifest, other_numbers])
def test_a_save_that_cannot_be_read_back_fails(damage, tmp_path, monkeypatch):
    """Kills: a checkpoint that counts as the newest, and replaces older ones, although nothing can be read from it."""
    saved = {"cursor": {}, "config": {}}
    with Checkpoints(tmp_path / "c", record=tmp_path / "newest") as checkpoints:
        checkpoints.save(1, STATE, **saved)
        checkpoints.wait()
        with monkeypatch.context() as patch:
            damage(patch)
            checkpoints.save(2, STATE, **saved)
            with pytest.raises(OSError, match="step 2 was not written as it was saved"):
                checkpoints.wait()
        assert checkpoints.newest == 1
    assert [path.name for path in (tmp_path / "c").iterdir() if path.name.isdecimal()] == ["1"]
    assert json.loads((tmp_path / "newest").read_text()) == {"newest": 1}


def change_a_digit(lines):
    return [lines[0], lines[1].replace("2.0", "4.0"), lines[2]]


def change_a_step(lines):
    return [lines[0], lines[1].replace('"step": 40', '"step": 10'), lines[2]]


def remove_a_checksum(lines):
    return [lines[0], lines[1].replace('"crc"', '"crd"').replace("2.0", "4.0"), lines[2]]


@pytest.mark.parametrize("damage", [change_a_digit, change_a_step, remove_a_checksum])
def test_changed_rows_are_noticed(damage, tmp_path, capsys):
    """Kills: `--checkpoint best` that takes another step because one digit of metrics.jsonl has changed."""
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step, loss in ((10, 3.0), (40, 2.0), (50, 5.0)):
            log.write(step, {"valid/loss": loss})
    assert best_steps(read_rows(path, whole=True), "valid/loss")[0] == 40
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    assert [row["step"] for row in read_rows(path)] == [10, 50]
    assert "line 2 holds no row of numbers, or a damaged one" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"line 2 .* restore the file, or remove the line"):
        read_rows(path, whole=True)


def test_a_run_of_the_last_version_loads_and_goes_on(tmp_path, monkeypatch, capsys):
    """Kills: runs without the new checksums that are refused, or continued with other numbers."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(LAST_VERSION) as archive:
        archive.extractall(tmp_path / "run")
    rows = read_rows(tmp_path / "run/metrics.jsonl", whole=True)
    assert [row["step"] for row in rows if "valid/loss" in row] == [2, 4]
    flags = ["--run", "run", "--checkpoint", "best", "--out", "out.json"]
    assert evaluate(flags) == 0, capsys.readouterr().err
    found = json.loads(Path("out.json").read_text())
    assert found["metrics"]["valid/loss"] == pytest.approx(min(row.get("valid/loss", 9.0) for row in rows), rel=1e-6)
    shutil.rmtree("run/checkpoints/4")
    Path("run/newest_checkpoint.json").unlink()
    assert train(["--config", "run/config.py", "--run-dir", "run", "--resume"]) == 0, capsys.readouterr().err
    again = read_rows(tmp_path / "run/metrics.jsonl", whole=True)
    assert all('"crc"' in line for line in Path("run/metrics.jsonl").read_text().splitlines())
    assert [row["step"] for row in again] == [row["step"] for row in rows]
    assert [row["valid/loss"] for row in again if "valid/loss" in row] == pytest.approx(
        [row["valid/loss"] for row in rows if "valid/loss" in row], rel=1e-6
    )


def remove(path):
    path.unlink()


def replace(path):
    path.unlink()
    path.touch()


def move(path):
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("harm", [remove, replace, move])
def test_a_writer_whose_lock_is_gone_stops(harm, tmp_path):
    """Kills: two processes that write to one run, of which the first ends with status 0 and half of its rows."""
    run = RunDirectory(tmp_path / "run")
    run.create({}, None)
    run.check_place()
    harm(run.path / ".lock")
    with pytest.raises(OSError, match=r"was (moved or )?removed"):
        run.check_place()
    with contextlib.suppress(OSError):
        run.release()


def test_a_reader_lists_again_when_a_checkpoint_is_replaced(tmp_path):
    """Kills: "cannot be used" for a run that keeps one checkpoint, read while it saves the next."""
    (tmp_path / "1").mkdir()

    def read(folder):
        if folder.name == "1":
            (tmp_path / "2").mkdir()
            (tmp_path / "1").rmdir()
            raise UnusableError("seal is missing")
        return folder.name

    assert newest_usable(tmp_path, read) == "2"

    def fail(folder):
        raise UnusableError("seal is damaged")

    with pytest.raises(UnusableError, match="2: seal is damaged"):
        newest_usable(tmp_path, fail)


@pytest.mark.parametrize("place", ["checkpoints/3/state/d", "tokenizer/tokenizer.json", ".lock"])
def test_links_at_any_depth_are_refused(place, tmp_path):
    """Kills: a link inside of a checkpoint, or in place of the lock, that leads to files of somebody else."""
    run = RunDirectory(tmp_path / "run")
    file = run.path / place
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is a symbolic link, which no run made"):
        run.check_links()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="is no regular file"):
        run.check_links()
