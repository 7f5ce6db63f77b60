"""Runs whose files are damaged, gone on with and generated from through the command line.

`tests/train/test_damage.py` damages the same files in quicker ways.
"""

import random
import shutil
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.train import main as train
from tests.train.conftest import CONFIG, leftovers, use_one_device  # noqa: F401 a fixture
from tests.train.test_damage import scatter

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
