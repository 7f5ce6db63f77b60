"""Runs whose files are damaged, gone on with and generated from through the command line.

`tests/train/test_damage.py` damages the same files in quicker ways.
"""

import random
import shutil
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.generate import main as generate
from jaxzoo.cli.train import main as train
from tests.train.conftest import CONFIG, leftovers, use_one_device  # noqa: F401 a fixture
from tests.train.test_damage import flip, scatter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leftovers"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compilation) -> Path:
    """A run of the config of `mqar_file`, trained to its end (step 9) with checkpoints of steps 6 and 9."""
    directory = tmp_path_factory.mktemp("trained_mqar")
    file = directory / "mqar.py"
    file.write_text(textwrap.dedent(CONFIG).replace("DATA", "mqar"))
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        patch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
        assert train(["--config", str(file), "--run-dir", str(directory / "run")]) == 0
    return directory / "run"


@pytest.fixture
def whole(trained, rows, tmp_path) -> list[dict]:
    """The rows of run `r`, a copy of that one."""
    shutil.copytree(trained, tmp_path / "r")
    return rows("r")


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def scatter_numbers(folder: Path) -> None:
    for file in folder.glob("state/**/d/*"):
        scatter(file, random.Random(0))


def edit_cursor(folder: Path) -> None:
    file = folder / "seal" / "metadata"
    file.write_text(file.read_text().replace('"cursor": {"step": 9', '"cursor": {"step": 8'))


DAMAGES = {
    "bits": (lambda c: scatter_numbers(c / "9"), "checkpoint 9 in", "(state"),
    "name": (lambda c: (c / "9").rename(c / "33"), "checkpoint 33 in", "(seal is of step 9, but"),
    "cursor": (lambda c: edit_cursor(c / "9"), "checkpoint 9 in", "(seal is damaged"),
    "gone": (lambda c: shutil.rmtree(c / "9"), "checkpoint 9 in", "(its folder is gone)"),
    "numbers": (lambda c: shutil.rmtree(c / "9" / "state" / "ocdbt.process_0"), "checkpoint 9 in", "(state"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_not_trained_from(damage, whole, mqar_file, run, rows, tmp_path, capfd):
    """Kills: a resume from wrong numbers or other data without a word, a traceback, a run that ends otherwise."""
    damaging, name, reason = DAMAGES[damage]
    damaging(tmp_path / "r" / "checkpoints")
    assert run(mqar_file, "r", "--resume") == 0
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(f"warning: {name}")
    assert reason in line
    assert line.endswith("; taking that of step 6")
    assert "resumed at step 6" in out
    assert rows("r") == whole
    assert run(mqar_file, "r", "--resume") == 0
    out, err = capfd.readouterr()
    assert "resumed at step 9" in out
    assert err == ""


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_without_a_good_checkpoint_nothing_is_overwritten(how, whole, mqar_file, run, tmp_path, capfd):
    """Kills: a start at 0 over the rows of a run that had come further."""
    for folder in sorted((tmp_path / "r" / "checkpoints").iterdir()):
        flip(folder / "seal" / "metadata", random.Random(0)) if how == "damaged" else shutil.rmtree(folder)
    before = snapshot(tmp_path / "r")
    assert run(mqar_file, "r", "--resume") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: no checkpoint in {tmp_path / 'r' / 'checkpoints'} can be used (9: ")
    assert "start again with --overwrite, or choose another place with --run-dir" in line
    assert snapshot(tmp_path / "r") == before


def test_an_empty_folder_is_passed_over_and_a_stray_left_alone(whole, mqar_file, run, rows, tmp_path, capfd):
    """Kills: KeyError of an empty folder; somebody's notes deleted."""
    (tmp_path / "r" / "checkpoints" / "12").mkdir()
    (tmp_path / "r" / "checkpoints" / "notes").mkdir()
    assert run(mqar_file, "r", "--resume") == 0
    stray, skipped = capfd.readouterr().err.splitlines()
    assert "holds 'notes': no checkpoint, left alone" in stray
    assert "checkpoint 12 in" in skipped
    assert skipped.endswith("(seal is missing); taking that of step 9")
    assert rows("r") == whole
    assert (tmp_path / "r" / "checkpoints" / "notes").is_dir()


def test_a_run_without_checkpoint_begins_again_and_says_so(whole, mqar_file, run, rows, tmp_path, capfd):
    """Kills: a run that was killed before its first save was complete, and cannot go on, or does so in silence."""
    for folder in sorted((tmp_path / "r" / "checkpoints").iterdir()):
        folder.rename(folder.with_name(folder.name + ".orbax-checkpoint-tmp"))
    assert run(mqar_file, "r", "--resume") == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"warning: {tmp_path / 'r'} has no checkpoint yet; training begins again at step 0"
    assert rows("r") == whole


METRICS = {
    "deleted": (lambda lines: [], "holds 0 of the 7 rows up to step 6; the learning curve has a gap"),
    "bad line": (lambda lines: [*lines[:2], "{", *lines[3:]], "line 3 holds no row of numbers; left out"),
}


@pytest.mark.parametrize("damage", METRICS)
def test_damaged_metrics_do_not_stop_a_run(damage, whole, mqar_file, run, rows, tmp_path, capfd):
    """Kills: a traceback of the JSON reader, a hole in the learning curve that nobody is told of."""
    file, (damaging, message) = tmp_path / "r" / "metrics.jsonl", METRICS[damage]
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "9")
    (tmp_path / "r" / "newest_checkpoint.json").unlink()
    lines = damaging(file.read_text().splitlines())
    file.unlink() if damage == "deleted" else file.write_text("".join(line + "\n" for line in lines))
    assert run(mqar_file, "r", "--resume") == 0
    err = capfd.readouterr().err
    assert f"warning: {file}" in err
    assert message in err
    assert "Traceback" not in err
    assert [row for row in rows("r") if row["step"] > 6] == [row for row in whole if row["step"] > 6]


def test_text_of_a_damaged_run(run_copy, capfd):
    """Kills: text from damaged parameters, or from another checkpoint than the one that was asked for."""
    run = run_copy()
    flags = ["--run", str(run), "--prompt", "a", "--max-tokens", "5"]
    scatter_numbers(run / "checkpoints" / "4")
    before = snapshot(run)
    assert generate(flags) == 0
    err = capfd.readouterr().err
    assert err.startswith(f"warning: checkpoint 4 in {run / 'checkpoints'} cannot be used (state")
    assert "taking that of step 3\n" in err
    assert "checkpoint 3, " in err
    assert "Traceback" not in err
    assert generate([*flags, "--checkpoint", "4"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {run}: checkpoint 4 cannot be used: state")
    (run / "checkpoints" / "3").rename(run / "checkpoints" / "2")
    assert generate(flags) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {run}: no checkpoint in {run / 'checkpoints'} can be used (4: state")
    assert "; 2: seal is of step 3, but the folder is named 2)" in line
    (run / "checkpoints" / "2").rename(run / "checkpoints" / "3")
    assert {name for name, data in before.items() if snapshot(run).get(name) != data} == set()
