"""Commands that die, or meet a disk error, at any file operation, and are repeated."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PLACES = 20

compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    file = tmp_path_factory.mktemp("shim") / "shim.so"
    words = [str(compiler), "-shared", "-fPIC", "-O1", "-o", str(file), str(HERE / "shim.c"), "-ldl"]
    subprocess.run(words, check=True, timeout=60)
    return file


@pytest.mark.slow
@pytest.mark.skipif(compiler is None or sys.platform != "linux", reason="needs a C compiler, and LD_PRELOAD of Linux")
@pytest.mark.parametrize("name", ["train", "build", "tokenize", "convert", "export", "linearize"])
def test_a_command_that_fails_anywhere_gives_the_same_when_repeated(name, shim, tmp_path):
    """Kills: a file that appears half written, a save that counts before it is whole, a result that depends on where
    its command was killed, an error of the disk that is passed over."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    words = [sys.executable, "-m", "tests.faults.trial", name, str(PLACES), str(tmp_path / "world")]
    done = subprocess.run(words, env=environment, check=False, timeout=3600, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["operations"] > 3
    assert report["failed"] == []
