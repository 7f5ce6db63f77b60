"""A program of somebody else's, who has read docs/your_own_code.md. Kills: mixers that work in our own models alone."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_five_mixers_in_a_model_of_plain_nnx(tmp_path):
    """Kills: mixers that fail under Explicit axes inside other layers, values that depend on the mesh, documents that
    leak, states whose sharding or dtype changes within a scan."""
    program = Path(__file__).with_name("outsider.py")
    run = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("five mixers on 8 devices")
