"""A package of somebody else's, installed with pip, adds a mixer and a task to every command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_a_mixer.md").read_text()
BACKEND = '''
"""Builds the wheel of one package with the standard library alone."""
import zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = "outside_zoo-0.1-py3-none-any.whl", "outside_zoo-0.1.dist-info"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        for module in ("__init__", "mixers", "tasks"):
            wheel.write(f"outside_zoo/{module}.py")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: outside-zoo\\nVersion: 0.1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.write("entry_points.txt", f"{info}/entry_points.txt")
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''
FILES = {
    "backend.py": BACKEND,
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "entry_points.txt": "[jaxzoo.mixers]\naverage = outside_zoo.mixers:MovingAverageConfig\n"
    "[jaxzoo.tasks]\necho = outside_zoo.tasks:EchoConfig\n",
    "outside_zoo/__init__.py": "",
}
CHECK = """
from jaxzoo.testing import check_mixer, check_task
from outside_zoo.mixers import MovingAverageConfig
from outside_zoo.tasks import EchoConfig
check_mixer(MovingAverageConfig.tiny())
check_task(EchoConfig())
"""
EXPERIMENT = """
import dataclasses
from jaxzoo.cli.config_file import load_config
from jaxzoo.sweep import Experiment, Scale, grid
from outside_zoo.mixers import MovingAverageConfig
from pathlib import Path

def config(point):
    made = load_config(Path("ANY"), mixer="average", task="echo")
    optimizer = dataclasses.replace(made.optimizer, learning_rate=point["learning_rate"])
    train = dataclasses.replace(made.train, steps=3, batch_size=8)
    return dataclasses.replace(made, optimizer=optimizer, train=train)

def draw(results):
    from jaxzoo.utils.figure import panels
    return panels(1, 1, size=(3, 3), title="echo")[0]

def smoke():
    return Scale(about="Three steps.", points=grid(model=("average",), learning_rate=(1e-3, 1e-2)), config=config)

experiment = Experiment(title="Echo", about="An average.", scales={"smoke": smoke}, claims=(),
                        made_up=lambda point: 1.0, draw=draw)
"""


@pytest.fixture
def at_home(tmp_path):
    """Runs Python where the package is installed and this repository is on no path but Python's."""
    source, site = tmp_path / "source", tmp_path / "site"
    mixer, task = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    texts = {**FILES, "outside_zoo/mixers.py": mixer, "outside_zoo/tasks.py": task}
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *pip, str(source)], check=True)
    assert (site / "outside_zoo-0.1.dist-info/entry_points.txt").is_file()
    paths = os.pathsep.join([str(ROOT), str(site)])
    environment = {**os.environ, "PYTHONPATH": paths, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}

    def start(*words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finish(process: subprocess.Popen) -> str:
    """All that it printed; it must have succeeded."""
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return out


@pytest.mark.slow
def test_a_package_from_outside(at_home, tmp_path):
    """Kills: a name that only the registry knows in any command, a contract that needs the file in the package, a run
    of outside classes that cannot be resumed, evaluated, loaded or swept."""
    finish(at_home("-c", CHECK))
    assert "echo: The first token" in finish(at_home("-m", "jaxzoo.tasks", "--task", "echo", "--show", "1"))

    train = ["-m", "jaxzoo.train", "--config", str(ROOT / "configs/any_task.py"), "--model.mixer", "average"]
    train += ["--task", "echo", "--train.batch-size", "8", "--train.steps", "400", "--train.checkpoint-every", "20"]
    train += ["--train.eval-every", "0"]
    finish(at_home(*train, "--run-dir", "straight"))
    process = at_home(*train, "--run-dir", "killed")
    deadline = time.monotonic() + 300
    while not (tmp_path / "killed/checkpoints/40").is_dir() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed: raise --train.steps"
    assert "resumed at step" in finish(at_home(*train, "--run-dir", "killed", "--resume"))
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("straight", "killed")]
    assert metrics[0] == metrics[1]
    config = json.loads((tmp_path / "killed/config.json").read_text())
    assert config["model"]["pattern"][1]["type"] == "outside_zoo.mixers:MovingAverageConfig"
    assert config["data"]["train"][0]["task"]["type"] == "outside_zoo.tasks:EchoConfig"

    assert "accuracy" in finish(at_home("-m", "jaxzoo.evaluate", "--run", "killed"))
    program = 'import jaxzoo; print(jaxzoo.load("killed").generate([[1, 0, 0]], max_tokens=3))'
    assert "array" in finish(at_home("-c", program))
    (tmp_path / "experiment.py").write_text(EXPERIMENT.replace("ANY", str(ROOT / "configs/any_task.py")))
    sweep = ["-m", "jaxzoo.sweep", "--experiment", "experiment.py", "--scale", "smoke", "--out", "swept"]
    finish(at_home(*sweep, "--workers", "1"))
    rows = [json.loads(line) for line in (tmp_path / "swept/results.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["finished", "finished"]
