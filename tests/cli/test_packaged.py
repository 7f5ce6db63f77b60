"""The console command and packaged configs. Kills: a command or file missing from the package."""

import os
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import jaxzoo
from jaxzoo.cli import commands as console, packaged
from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.user_files import import_file

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def typed(monkeypatch, *words):
    """Returns the exit status of `jaxzoo WORDS` and the command that it ran."""
    entered = []

    def run(command):
        entered.append((command, sys.argv[1:]))
        raise SystemExit(0)

    monkeypatch.setattr(sys, "argv", ["jaxzoo", *words])
    monkeypatch.setattr(console, "_run", run)
    with pytest.raises(SystemExit) as stopped:
        console.main()
    return stopped.value.code, entered


def test_the_console_command(monkeypatch, capsys):
    """Kills: a command without a module, a module that is missing from the table, lost arguments, a second version
    number."""
    with_main = {
        file.stem
        for file in (ROOT / "jaxzoo/cli").glob("*.py")
        if re.search(r"^(def main\(|main\b.* = )", file.read_text(), re.MULTILINE)
    }
    assert {name.replace("-", "_") for name in console.COMMANDS} == with_main - {"commands", "sweep_worker"}
    assert typed(monkeypatch, "data-build", "--out", "x") == (0, [("data-build", ["--out", "x"])])
    assert typed(monkeypatch, "trian") == (2, [])
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert typed(monkeypatch, "--version") == (0, [])
    assert capsys.readouterr().out == f"jaxzoo {jaxzoo.__version__}\n"
    assert f"\n## {jaxzoo.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {jaxzoo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert typed(monkeypatch) == (0, [])
    assert set(re.findall(r"^  ([\w-]+)  ", capsys.readouterr().out, re.MULTILINE)) == set(console.COMMANDS)


@pytest.mark.parametrize("name", console.COMMANDS)
def test_every_command_has_an_entry_file(name, monkeypatch):
    """Kills: an entry file that runs another command, or none, or that runs one where it is imported."""
    entered = []
    monkeypatch.setattr(console, "_run", entered.append)
    module = "jaxzoo." + re.sub("^(data|tasks)-", r"\1.", name).replace("-", "_")
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert entered == [name]
    if name not in ("train", "sweep", "bench", "tasks", "plan"):  # packages, whose entry file is __main__
        runpy.run_module(module, run_name="imported")
        assert entered == [name]


def test_ctrl_c_during_the_imports_is_one_line(monkeypatch, capsys):
    """Kills: a traceback after Ctrl-C while modules are imported."""

    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(console.importlib, "import_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["jaxzoo", "train"])
    with pytest.raises(SystemExit) as stopped:
        console.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_no_packaged_file_hides_a_module_of_python():
    """Kills: a config named `compression`. Its folder is on `sys.path` once it is read, and of processes that start
    later JAX, which looks for `compression.zstd` (Python 3.14), imports the config in its place and fails."""
    of_python = {*sys.stdlib_module_names, "annotationlib", "compression"}
    files = [file for kind in ("configs", "experiments") for file in (ROOT / kind).rglob("*.py")]
    assert len(files) > 30
    assert not of_python & {file.stem for file in files}


def test_a_name_is_a_packaged_file_and_a_path_stays_a_path(tmp_path, monkeypatch):
    """Kills: a packaged name that hides the user's folder, a path that is taken for a name, a hint at an absent
    file."""
    monkeypatch.chdir(tmp_path)
    assert packaged.find("mqar/based", "configs") == str(ROOT / "configs/mqar/based.py")
    assert packaged.find("zoology_figure2", "experiments") == str(ROOT / "experiments/zoology_figure2.py")
    assert packaged.find("mqar/based.py", "configs") == "mqar/based.py"
    with pytest.raises(UsageError, match=r"configs/mqar/based.py does not exist; the packaged one is mqar/based$"):
        load_config(Path("configs/mqar/based.py"))
    with pytest.raises(UsageError, match=r"mqar/basde does not exist; did you mean 'mqar/based'\?$"):
        load_config(Path("mqar/basde"))
    with pytest.raises(UsageError, match=r"the packaged one is cat_figure4$"):
        import_file(Path("experiments/cat_figure4.py"), "experiments")
    (tmp_path / "mqar/based").mkdir(parents=True)
    assert packaged.find("mqar/based", "configs") == "mqar/based"


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    """Kills: a wheel without configs, experiments, their helpers or the pages' files, a dependency that pyproject.toml
    leaves out."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("jaxzoo-*.whl")
    assert "jaxzoo/packaged/experiments/recall_per_byte/rows/README.md" in zipfile.ZipFile(wheel).namelist()
    python = tmp_path / "venv/bin/python"
    venv.create(tmp_path / "venv", with_pip=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, env=environment)
    (tmp_path / "empty").mkdir()

    def ran(*words):
        command = [tmp_path / "venv/bin/jaxzoo", *words]
        return subprocess.run(command, check=True, cwd=tmp_path / "empty", env=environment, capture_output=True).stdout

    assert b"short" in ran("train", "--config", "mqar/zoo", "--model.mixer", "gated_short_conv", "--print-model")
    ran("train", "--config", "mqar/based", "--train.steps", "2")
    assert (tmp_path / "empty/runs/mqar-based/metrics.jsonl").exists()
    assert b"runs" in ran("sweep", "--experiment", "mqar_gallery", "--scale", "smoke", "--dry-run")
    assert b"not run yet: " in ran("bench", "--list")
