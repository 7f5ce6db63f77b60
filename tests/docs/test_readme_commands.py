"""The README's commands, in its order, in a folder with the repository's files; long ones with few steps."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("jaxzoo ")]
FEW_STEPS = "--train.steps 4 --train.batch-size 4 --train.eval-every 0 --train.valid-batch-size 8"
SMALL = {
    "jaxzoo train --config configs/mqar": f"{FEW_STEPS} --data.valid.0.n-examples 16",
    "jaxzoo train --config configs/lm": f"{FEW_STEPS} --data.valid-tokens 2048",
    "jaxzoo generate --run experiments": "--max-tokens 8",
    "jaxzoo evaluate --run runs/mqar": "--data.valid.0.n-examples 16",
    "jaxzoo sweep --experiment experiments/zoology_figure2.py --scale laptop": "--scale smoke",
    "jaxzoo compare": "--data.valid.0.n-examples 16",
}
"""Beginning of a command -> what makes it short here."""
ELSEWHERE = {
    "jaxzoo plan": "tests/cli/test_plan.py: it needs the plugins for absent accelerators",
    "jaxzoo convert": "tests/interop: the weights are 98 MB",
    "jaxzoo generate --run runs/smollm2": "tests/interop",
    "jaxzoo evaluate --run runs/smollm2": "tests/interop",
    "jaxzoo linearize": "tests/cli/test_linearize.py: it takes more than an hour",
}
"""Beginning of a command -> why it is not run here."""


@pytest.mark.full
def test_commands(tmp_path):
    """Kills: a command of the README that fails where a newcomer types it, or after the commands before it."""
    for name in ("configs", "docs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # one device
    done = 0
    for command in COMMANDS:
        words = command.split("#")[0]
        if any(words.startswith(each) for each in ELSEWHERE):
            continue
        small = next((flags for each, flags in SMALL.items() if words.startswith(each)), "")
        line = [sys.executable, "-m", *shlex.split(words), *shlex.split(small)]
        run = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, f"{command}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        done += 1
    assert done >= 9
